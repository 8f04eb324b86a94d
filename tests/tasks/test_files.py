from __future__ import annotations

import hashlib
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

import pytest

from thermoformer.tasks import data_file, files

NAME = "mnist/t10k-labels-idx1-ubyte.gz"


class Silent(SimpleHTTPRequestHandler):
    def log_message(self, *arguments):
        pass


@pytest.fixture
def official(tmp_path, monkeypatch):
    """A local server in place of the official one, with an empty cache; returns the file it serves and the cache."""
    served = tmp_path / "served"
    served.mkdir()
    (served / "labels.gz").write_bytes(b"the right bytes")
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Silent, directory=str(served)))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    address = f"http://127.0.0.1:{server.server_address[1]}/labels.gz"
    monkeypatch.setitem(files.FILES, NAME, (address, hashlib.sha256(b"the right bytes").hexdigest()))
    monkeypatch.setattr(files.pooch, "os_cache", lambda name: tmp_path / "cache")
    monkeypatch.delenv("THERMOFORMER_DATA", raising=False)
    for variable in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(variable, raising=False)
    yield served / "labels.gz", tmp_path / "cache" / NAME
    server.shutdown()
    server.server_close()
    thread.join()


def test_a_file_is_fetched_once_and_kept(official):
    served, kept = official
    assert data_file(NAME) == kept and kept.read_bytes() == b"the right bytes"
    served.unlink()
    assert data_file(NAME) == kept


@pytest.mark.parametrize("damage", [b"the right", b"the wrong bytes", b""])
def test_a_damaged_file_in_the_cache_is_refused_and_fetched_again(official, damage):
    _, kept = official
    data_file(NAME)
    kept.write_bytes(damage)
    with pytest.warns(UserWarning, match="damaged or altered .* fetched again"):
        assert data_file(NAME).read_bytes() == b"the right bytes"


def test_a_download_with_another_checksum_is_refused_and_not_kept(official):
    served, kept = official
    served.write_bytes(b"the wrong bytes")
    with pytest.raises(OSError, match="could not be fetched .*by hand") as caught:
        data_file(NAME)
    assert "hash" in str(caught.value) and not kept.exists()


def test_without_a_network_the_message_says_where_to_put_the_file(official, monkeypatch):
    monkeypatch.setitem(files.FILES, NAME, ("http://127.0.0.1:9/labels.gz", files.FILES[NAME][1]))
    with pytest.raises(OSError) as caught:
        data_file(NAME)
    for words in (NAME, "127.0.0.1:9", "by hand", str(official[1]), "THERMOFORMER_DATA"):
        assert words in str(caught.value)


def test_a_damaged_file_stays_where_it_cannot_be_replaced(official, monkeypatch):
    _, kept = official
    data_file(NAME)
    kept.write_bytes(b"the rig")
    monkeypatch.setitem(files.FILES, NAME, ("http://127.0.0.1:9/labels.gz", files.FILES[NAME][1]))
    with pytest.warns(UserWarning, match="damaged"), pytest.raises(OSError, match="could not be fetched"):
        data_file(NAME)


def test_the_users_own_file_comes_first_and_is_read_as_it_is(official, tmp_path, monkeypatch):
    own = tmp_path / "own" / NAME
    own.parent.mkdir(parents=True)
    own.write_bytes(b"repacked")
    monkeypatch.setenv("THERMOFORMER_DATA", str(tmp_path / "own"))
    assert data_file(NAME) == own
    own.unlink()
    assert data_file(NAME) == official[1]


def test_a_folder_that_is_not_there_is_said(monkeypatch, tmp_path):
    monkeypatch.setenv("THERMOFORMER_DATA", str(tmp_path / "nowhere"))
    with pytest.raises(FileNotFoundError, match="THERMOFORMER_DATA: got .*nowhere.*no folder"):
        data_file(NAME)


def test_checksums_are_checksums():
    assert len({checksum for _, checksum in files.FILES.values()}) == len(files.FILES)
    for address, checksum in files.FILES.values():
        assert len(bytes.fromhex(checksum)) == 32 and address.startswith("https://")


def test_official_files_at_hand_have_their_checksums(real_data):
    for name in files.FILES:
        # Of Omniglot and of SST-2 other packings are at hand.
        if not name.startswith(("omniglot/", "text/sst2/")):
            assert hashlib.sha256((real_data / name).read_bytes()).hexdigest() == files.FILES[name][1]
