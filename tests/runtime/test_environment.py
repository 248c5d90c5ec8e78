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


PLUGINS = "importlib.metadata.entry_points"


@pytest.fixture
def bare(tmp_path, monkeypatch):
    """A machine with libtpu, one PCI device of another vendor and no accelerator."""
    for name in ("JAX_PLATFORMS", "JAX_FORCE_TPU_INIT"):
        monkeypatch.delenv(name, raising=False)
    find = lambda name: name if name == "libtpu" else None  # noqa: E731
    monkeypatch.setattr(importlib.util, "find_spec", find)
    monkeypatch.setattr(PLUGINS, lambda group: [])
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


DECIDES = {
    "the user by the platform": lambda patch: patch.setenv("JAX_PLATFORMS", "tpu"),
    "the user by force": lambda patch: patch.setenv("JAX_FORCE_TPU_INIT", "tpu"),
    "another plug-in": lambda patch: patch.setattr(PLUGINS, lambda group: ["cuda"]),
    "no libtpu": lambda patch: patch.setattr(importlib.util, "find_spec", lambda name: None),
}


@pytest.mark.parametrize("who", DECIDES)
def test_where_another_decides_libtpu_is_asked(bare, monkeypatch, who):
    assert not environment.only_cpu(bare / "nowhere")  # without a view of the bus
    DECIDES[who](monkeypatch)
    assert not environment.only_cpu(bare)


CACHE = "JAX_COMPILATION_CACHE_DIR"


@pytest.fixture
def configured(tmp_path, monkeypatch):
    """Environment variables as a command sets them, of a process that has only those given and does
    not start again."""

    def run(**given):
        own = {"HOME": str(tmp_path), environment.BEGUN: "again", **given}
        monkeypatch.setattr(os, "environ", own)
        environment.configure()
        return os.environ

    before = gc.get_threshold()
    yield run
    gc.set_threshold(*before)


def test_a_command_keeps_what_it_compiles_in_the_home_unless_told_otherwise(configured, tmp_path):
    folder = environment.compiled(Path(DataConfig.cache.replace("~", str(tmp_path))))
    other = environment.compiled(tmp_path / "other")
    for given, due in (
        ({}, str(folder)),
        ({CACHE: "/mine"}, "/mine"),
        ({"FLAXFORMER_LITE_CACHE": str(tmp_path / "other")}, str(other)),
        ({"FLAXFORMER_LITE_CACHE": "gs://bucket/cache"}, None),
    ):
        assert configured(**given).get(CACHE) == due
    assert folder.is_dir()


def test_compiled_programs_are_the_users_alone_under_any_umask(configured):
    before = os.umask(0)
    try:
        folder = Path(configured()[CACHE])
    finally:
        os.umask(before)
    assert folder.stat().st_mode & 0o777 == folder.parent.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("mode", [0o720, 0o702])
@pytest.mark.parametrize("up", [0, 1], ids=["programs", "its parent"])
def test_a_folder_that_others_may_write_is_refused(configured, capsys, mode, up):
    folder = Path(configured()[CACHE])
    shared = [folder, folder.parent][up]
    shared.chmod(mode)
    assert CACHE not in configured()
    said = capsys.readouterr().err
    assert f"{shared} may be written by others; delete it" in said and said.count("\n") == 1


def test_a_folder_of_another_user_is_refused(configured, capsys, monkeypatch):
    folder = Path(configured()[CACHE])
    monkeypatch.setattr("os.getuid", lambda: folder.stat().st_uid + 1)
    assert CACHE not in configured()
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


PAGES = "sys/kernel/mm/transparent_hugepage/enabled"
REFUSE = {
    "an old library": lambda patch, root: patch.setattr("os.confstr", lambda name: "glibc 2.31"),
    "a user": lambda patch, root: patch.setenv("GLIBC_TUNABLES", "glibc.malloc.hugetlb=0"),
    "always": lambda patch, root: write(root, PAGES, "[always] madvise never"),
    "never": lambda patch, root: write(root, PAGES, "always madvise [never]"),
}


@pytest.mark.parametrize("why", REFUSE)
def test_huge_pages_are_asked_for_where_they_must_be_and_can(advised, monkeypatch, why):
    assert environment.wants_huge_pages(advised)
    assert not environment.wants_huge_pages(advised / "nowhere")
    REFUSE[why](monkeypatch, advised)
    assert not environment.wants_huge_pages(advised)


AGAIN = """
import os, sys
from pathlib import Path
from flaxformer_lite.runtime import environment
asked = environment.wants_huge_pages
environment.wants_huge_pages = lambda: asked(Path({root!r}))
print("begins", sys.argv[1:], os.environ.get("GLIBC_TUNABLES"), flush=True)
environment.configure()
"""


def test_a_program_starts_again_once_with_the_same_arguments(advised):
    own = {**os.environ, "PYTHONPATH": str(ROOT)}
    own.pop("GLIBC_TUNABLES", None)
    command = [sys.executable, "-c", AGAIN.format(root=str(advised)), "--a=b", "c d"]
    done = subprocess.run(command, capture_output=True, text=True, env=own)
    asked = f"glibc.malloc.hugetlb=1:glibc.malloc.arena_max={len(os.sched_getaffinity(0))}"
    due = [f"begins ['--a=b', 'c d'] {value}" for value in (None, asked)]
    assert done.stdout.splitlines() == due, done.stderr


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
    name, hits, _ = kept(tmp_path)
    folder = Path(name)
    assert folder.is_relative_to(tmp_path / "compiled")
    assert not hits
    assert folder.stat().st_mode & 0o777 == 0o700
    assert kept(tmp_path)[1]
    folder.chmod(0o777)  # of a folder that others may write, nothing is read
    none, hits, said = kept(tmp_path)
    assert (none, hits) == ("None", 0)
    assert "may be written by others" in said


def test_a_folder_that_jax_was_given_stays(tmp_path):
    own = str(tmp_path / "own")
    assert kept(tmp_path, JAX_COMPILATION_CACHE_DIR=own)[0] == own
    assert not (tmp_path / "compiled").exists()
