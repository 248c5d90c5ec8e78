import gc
import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from flaxformer_lite.config import DataConfig
from flaxformer_lite.runtime import environment

ROOT = Path(__file__).parents[2]


@pytest.fixture
def bare(tmp_path, monkeypatch):
    """A machine with libtpu, one PCI device of another vendor and no accelerator."""
    for name in ("JAX_PLATFORMS", "JAX_FORCE_TPU_INIT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: name if name == "libtpu" else None
    )
    monkeypatch.setattr("importlib.metadata.entry_points", lambda group: [])
    write(tmp_path, "sys/bus/pci/devices/0/vendor", "0x8086\n")
    return tmp_path


def write(root, name, text=""):
    (root / name).parent.mkdir(parents=True, exist_ok=True)
    (root / name).write_text(text)


def test_where_libtpu_has_no_device_to_find_it_is_not_asked(bare):
    assert environment.only_cpu(bare)


@pytest.mark.parametrize(
    ("name", "text"),
    [("sys/bus/pci/devices/1/vendor", "0x1ae0\n"), ("dev/accel0", ""), ("dev/vfio/0", "")],
)
def test_an_accelerator_is_never_hidden(bare, name, text):
    write(bare, name, text)
    assert not environment.only_cpu(bare)


@pytest.mark.parametrize("name", ["JAX_PLATFORMS", "JAX_FORCE_TPU_INIT"])
def test_what_the_user_says_stands(bare, monkeypatch, name):
    monkeypatch.setenv(name, "tpu")
    assert not environment.only_cpu(bare)


def test_without_libtpu_or_with_another_plugin_or_without_a_view_of_the_bus_jax_decides(
    bare, monkeypatch
):
    assert not environment.only_cpu(bare / "nowhere")
    monkeypatch.setattr("importlib.metadata.entry_points", lambda group: ["cuda"])
    assert not environment.only_cpu(bare)
    monkeypatch.setattr("importlib.metadata.entry_points", lambda group: [])
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert not environment.only_cpu(bare)


@pytest.fixture
def configured(tmp_path, monkeypatch):
    """Environment variables as a command sets them, of a process that has only those given and does
    not start again."""

    def run(**given):
        monkeypatch.setattr(
            os, "environ", {"HOME": str(tmp_path), environment.BEGUN: "again", **given}
        )
        environment.configure()
        return os.environ

    before = gc.get_threshold()
    yield run
    gc.set_threshold(*before)


def test_a_command_keeps_what_it_compiles_in_the_home_unless_told_otherwise(configured, tmp_path):
    folder = environment.compiled(Path(DataConfig.cache.replace("~", str(tmp_path))))
    assert configured()["JAX_COMPILATION_CACHE_DIR"] == str(folder) and folder.is_dir()
    assert configured(JAX_COMPILATION_CACHE_DIR="/mine")["JAX_COMPILATION_CACHE_DIR"] == "/mine"
    other = environment.compiled(tmp_path / "other")
    given = configured(FLAXFORMER_LITE_CACHE=str(tmp_path / "other"))
    assert given["JAX_COMPILATION_CACHE_DIR"] == str(other)
    given = configured(FLAXFORMER_LITE_CACHE="gs://bucket/cache")
    assert "JAX_COMPILATION_CACHE_DIR" not in given


def test_compiled_programs_are_the_users_alone_under_any_umask(configured, tmp_path):
    before = os.umask(0)
    try:
        folder = Path(configured()["JAX_COMPILATION_CACHE_DIR"])
    finally:
        os.umask(before)
    assert folder.stat().st_mode & 0o777 == folder.parent.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("mode", [0o720, 0o702])
@pytest.mark.parametrize("up", [0, 1], ids=["programs", "its parent"])
def test_a_folder_that_others_may_write_is_refused(configured, capsys, mode, up):
    folder = Path(configured()["JAX_COMPILATION_CACHE_DIR"])
    shared = [folder, folder.parent][up]
    shared.chmod(mode)
    assert "JAX_COMPILATION_CACHE_DIR" not in configured()
    said = capsys.readouterr().err
    assert f"{shared} may be written by others; delete it" in said and said.count("\n") == 1


def test_a_folder_of_another_user_is_refused(configured, capsys, monkeypatch):
    folder = Path(configured()["JAX_COMPILATION_CACHE_DIR"])
    monkeypatch.setattr("os.getuid", lambda: folder.stat().st_uid + 1)
    assert "JAX_COMPILATION_CACHE_DIR" not in configured()
    said = capsys.readouterr().err
    assert f"{folder.parent} belongs to another user" in said
    assert "set JAX_COMPILATION_CACHE_DIR to a folder that you alone may write" in said


def test_python_looks_for_cycles_less_often(configured):
    gc.set_threshold(500)
    configured()
    # as many as the highest default of any Python
    assert gc.get_threshold()[0] == environment.GC_THRESHOLD > 2_000


def test_xla_fuses_as_train_steps_want_it_unless_the_user_sets_such_options(configured):
    ours = f"{environment.EXTRA}={environment.FUSION}"
    theirs = f"{environment.EXTRA}=xla_cpu_optimize_for_size"
    for given, due in (
        ({}, ours),
        ({"XLA_FLAGS": "--xla_dump_to=x"}, f"--xla_dump_to=x {ours}"),
        ({"XLA_FLAGS": theirs}, theirs),
        ({"XLA_FLAGS": "flags.txt"}, "flags.txt"),
    ):
        assert configured(**given)["XLA_FLAGS"] == due


@pytest.fixture
def advised(tmp_path, monkeypatch):
    """A machine whose kernel gives huge pages to those who ask, under a C library that can."""
    monkeypatch.delenv("GLIBC_TUNABLES", raising=False)
    monkeypatch.setattr("os.confstr", lambda name: "glibc 2.36")
    write(tmp_path, "sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never\n")
    return tmp_path


def test_huge_pages_are_asked_for_where_they_must_be_and_can(advised, monkeypatch):
    assert environment.wants_huge_pages(advised)
    assert not environment.wants_huge_pages(advised / "nowhere")
    monkeypatch.setattr("os.confstr", lambda name: "glibc 2.31")
    assert not environment.wants_huge_pages(advised)


@pytest.mark.parametrize("mode", ["[always] madvise never", "always madvise [never]"])
def test_a_kernel_that_has_decided_is_not_asked(advised, mode):
    write(advised, "sys/kernel/mm/transparent_hugepage/enabled", mode)
    assert not environment.wants_huge_pages(advised)


def test_what_the_user_tells_the_c_library_stands(advised, monkeypatch):
    monkeypatch.setenv("GLIBC_TUNABLES", "glibc.malloc.hugetlb=0")
    assert not environment.wants_huge_pages(advised)


def test_a_program_starts_again_once_with_the_same_arguments(advised):
    said = f"""
import os, sys
from pathlib import Path
from flaxformer_lite.runtime import environment
asked = environment.wants_huge_pages
environment.wants_huge_pages = lambda: asked(Path({str(advised)!r}))
print("begins", sys.argv[1:], os.environ.get("GLIBC_TUNABLES"), flush=True)
environment.configure()
"""
    environment = {k: v for k, v in os.environ.items() if k != "GLIBC_TUNABLES"} | {
        "PYTHONPATH": str(ROOT)
    }
    asked = f"glibc.malloc.hugetlb=1:glibc.malloc.arena_max={len(os.sched_getaffinity(0))}"
    command = [sys.executable, "-c", said, "--a=b", "c d"]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.stdout.splitlines() == [f"begins ['--a=b', 'c d'] {x}" for x in (None, asked)], (
        done.stderr
    )


KEPT = """
import flaxformer_lite, jax, jax.numpy as jnp
jnp.ones(3).block_until_ready()  # jax decides at its first compilation whether to cache
flaxformer_lite.keep_compiled()
read = []
jax.monitoring.register_event_listener(lambda name, **_: read.append(name))
jax.jit(lambda x: jnp.sin(x) @ x.T)(jnp.ones((3, 5)))
print(jax.config.values["jax_compilation_cache_dir"])
print(sum(name.endswith("cache_hits") for name in read))
"""


def kept(tmp_path, **environ):
    unset = {"JAX_COMPILATION_CACHE_DIR", "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"}
    inherited = {name: value for name, value in os.environ.items() if name not in unset}
    environ = inherited | {"FLAXFORMER_LITE_CACHE": str(tmp_path)} | environ
    run = subprocess.run(
        [sys.executable, "-c", KEPT], env=environ, capture_output=True, text=True, check=True
    )
    folder, hits = run.stdout.split()
    return folder, int(hits), run.stderr


def test_a_program_that_imports_the_package_finds_what_an_earlier_one_compiled(tmp_path):
    folder, hits, _ = kept(tmp_path)
    assert Path(folder).is_relative_to(tmp_path / "compiled")
    assert not hits
    assert Path(folder).stat().st_mode & 0o777 == 0o700
    assert kept(tmp_path)[1]


def test_a_folder_that_jax_was_given_stays(tmp_path):
    own = str(tmp_path / "own")
    assert kept(tmp_path, JAX_COMPILATION_CACHE_DIR=own)[0] == own
    assert not (tmp_path / "compiled").exists()


def test_a_folder_that_others_may_write_keeps_nothing(tmp_path):
    folder = Path(kept(tmp_path)[0])
    folder.chmod(0o777)
    none, hits, said = kept(tmp_path)
    assert (none, hits) == ("None", 0)
    assert "may be written by others" in said
