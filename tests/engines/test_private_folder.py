"""The temporary folder of a process that was killed is removed by the next one that needs a folder."""

import subprocess
import sys
import tempfile

import pytest

from troop.engines import private_folder

OWNER = """
import sys
from troop.engines.private_folder import private_folder
(private_folder() / "token").write_text("secret")
print(private_folder(), flush=True)
sys.stdin.readline()
"""


@pytest.fixture(autouse=True)
def temporary_root(tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    yield tmp_path


def start_owner():
    process = subprocess.Popen(
        [sys.executable, "-c", OWNER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    return process, process.stdout.readline().strip()


def folders(root):
    return {str(path) for path in root.glob("troop-*")}


def test_folders_of_killed_processes_are_removed_and_those_of_living_ones_are_not(temporary_root):
    (temporary_root / "troop-mine").mkdir()  # of the user: it has no lock file
    killed, _ = start_owner()
    killed.kill()
    killed.communicate()
    living, folder = start_owner()  # removes the folder of the other
    assert folders(temporary_root) == {folder, str(temporary_root / "troop-mine")}
    private_folder.remove_leftovers()
    assert folders(temporary_root) == {folder, str(temporary_root / "troop-mine")}
    living.communicate("\n")  # ends normally and removes its own
    assert folders(temporary_root) == {str(temporary_root / "troop-mine")}


def test_the_fork_server_puts_its_socket_into_the_private_folder(temporary_root):
    script = """
import glob, os, tempfile
from troop.engines.processes.fork_server import start_fork_server
from troop.engines.private_folder import private_folder
from multiprocessing import forkserver
forkserver._forkserver.set_forkserver_preload = lambda modules: None
start_fork_server()
sockets = glob.glob(tempfile.gettempdir() + "/*/listener-*")
print([os.path.dirname(path) == str(private_folder()) for path in sockets])
"""
    output = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert output.stdout == "[True]\n", output.stderr
    assert not folders(temporary_root)
