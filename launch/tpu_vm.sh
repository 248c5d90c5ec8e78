#!/bin/bash
# Trains on a TPU slice that may be preempted, in as many slices as it takes:
#
#     launch/tpu_vm.sh [--dry-run] NAME FLAGS...
#
# as in `launch/tpu_vm.sh xl --config=gpt2_xl --config.mesh.fsdp=16 --config.data.path=gs://BUCKET/text --workdir=gs://BUCKET/xl`.
# Creates the slice NAME as a queued resource, waits for it, installs the package, runs `flaxformer_lite train FLAGS` on all its
# workers, and starts over while the slice is preempted or its run stopped by SIGTERM; in the end, and on ctrl-C, deletes it.
# What the workers of a run that failed have printed is first written to NAME.log here. The run does not depend on this script's
# connection: one that is lost is made again. --dry-run prints the commands and runs none.
#
# Variables: ZONE, TYPE (gcloud compute tpus accelerator-types list), VERSION (of the VM's software), SPOT (empty: on demand),
# PAUSE (seconds between looks at the slice's state).
set -euo pipefail
dry=
if [ "${1-}" = --dry-run ]; then dry=yes; shift; fi
if [ $# -lt 2 ]; then echo "usage: launch/tpu_vm.sh [--dry-run] NAME FLAGS..." >&2; exit 2; fi
name=$1; shift
zone=--zone=${ZONE:-us-central1-a} pause=${PAUSE:-30}
tpus=(gcloud compute tpus)

run() { if [ -n "$dry" ]; then echo "${@@Q}"; else "$@"; fi; }
on_all() { run "${tpus[@]}" tpu-vm ssh "$name" "$zone" --worker=all --command="$1"; }
state() { "${tpus[@]}" queued-resources describe "$name" "$zone" --format='value(state.state)' || echo gone; }
# Runs a command on the workers, again while the connection is lost though the slice is there.
steady() {
  local code
  until "$@"; do
    code=$?
    if [ $code != $lost ] || [ "$(state)" != ACTIVE ]; then return $code; fi
    echo "tpu_vm.sh: the connection to $name is lost; trying again" >&2
    sleep "$pause"
  done
}
# Waits until the slice is there; 1: it was taken before that. Exits if it will never be.
wait_for_slice() {
  local gone=0
  while true; do
    case "$(state)" in
      ACTIVE) return 0 ;;
      SUSPENDING | SUSPENDED) return 1 ;;
      FAILED)
        echo "tpu_vm.sh: the request for $name has FAILED: no quota or no such TYPE in ZONE; gcloud compute tpus queued-resources" \
          "describe $name $zone says which" >&2
        exit 1 ;;
      gone)
        gone=$((gone + 1))
        if [ $gone = 10 ]; then echo "tpu_vm.sh: gcloud cannot describe $name; was it deleted?" >&2; exit 1; fi ;;
      *) gone=0 ;;  # accepted, waiting for resources, provisioning
    esac
    sleep "$pause"
  done
}
delete() { run "${tpus[@]}" queued-resources delete "$name" "$zone" --force --quiet; }

python='$HOME/venv/bin/python'  # of 3.12, by uv: the VM's own is older
install="python3 -m pip install --quiet --user uv && \$HOME/.local/bin/uv venv --quiet --clear --python=3.12 \$HOME/venv &&
\$HOME/.local/bin/uv pip install --quiet --python=$python \$(ls flaxformer_lite-*.whl)'[tpu,stores]'"
install=${install//$'\n'/ }
stopped=75  # the exit code of a run that SIGTERM stopped, which gcloud hands on
lost=255  # the exit code of ssh without a connection
train="$python -m flaxformer_lite train --stopped_code=$stopped ${*@Q}"
# The workers run it apart from ssh, once; each connection follows its output and hands on its exit code.
train="cd; test -e run.pid || { setsid bash -c ${train@Q}'; echo \$? > run.code' > run.log 2>&1 < /dev/null & echo \$! > run.pid; };
tail --lines=+1 --follow --pid=\$(cat run.pid) run.log; exit \$(cat run.code)"
train=${train//$'\n'/ }

[ -n "$dry" ] || rm -rf dist/launch
run python3 -m pip wheel --quiet --no-deps --wheel-dir=dist/launch .
wheel=$(ls dist/launch/*.whl 2> /dev/null || echo dist/launch/flaxformer_lite-VERSION-py3-none-any.whl)
while true; do
  run "${tpus[@]}" queued-resources create "$name" --node-id="$name" "$zone" --accelerator-type="${TYPE:-v5litepod-16}" \
    --runtime-version="${VERSION:-v2-alpha-tpuv5-lite}" ${SPOT---spot}
  trap delete EXIT  # not before: a slice of this name may be another's
  code=0
  {
    { [ -n "$dry" ] || wait_for_slice; } &&
    steady run "${tpus[@]}" tpu-vm scp "$wheel" "$name:" "$zone" --worker=all && steady on_all "$install" && steady on_all "$train"
  } || code=$?
  if [ $code = 0 ]; then exit; fi
  sleep "$pause"
  # the run itself failed, as its output says; one that was stopped has saved, though its slice may still be ACTIVE
  if [ $code != $stopped ] && [ "$(state)" = ACTIVE ]; then
    on_all 'cd; sed "s/^/$(hostname): /" run.log' > "$name.log" || true
    echo "tpu_vm.sh: the run has failed; $name.log has what its workers printed" >&2
    exit 1
  fi
  delete
  trap - EXIT
done
