"""The explorer's server: who may speak to it, where it listens, how it ends."""

from __future__ import annotations

import asyncio
import http.client
import socket
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from pathlib import Path

import pytest
from explorer_process import Explorer, explorer
from typer.testing import CliRunner

from thermoformer.app import Place, place_for
from thermoformer.app.guard import LARGEST_BODY, Guard
from thermoformer.app.server import until_left
from thermoformer.cli import app

pytest.importorskip("marimo", reason="needs the extra `app`")


@pytest.fixture(scope="module")
def running():
    with explorer() as here:
        yield here


def ask(here: Explorer, method: str = "GET", path: str = "/", body: bytes | None = None, **headers: str):
    connection = http.client.HTTPConnection("127.0.0.1", here.port, timeout=30)
    given = {"Host": f"127.0.0.1:{here.port}"} | {name.replace("_", "-"): value for name, value in headers.items()}
    with closing(connection):
        connection.request(method, path, body=body, headers=given)
        with closing(connection.getresponse()) as answer:
            text = "" if answer.status == 101 else answer.read().decode(errors="replace")
            return answer.status, text, answer


WEBSOCKET = {
    "Connection": "Upgrade",
    "Upgrade": "websocket",
    "Sec_WebSocket_Key": "dGhlIHNhbXBsZSBub25jZQ==",
    "Sec_WebSocket_Version": "13",
}


def test_its_own_page(running):
    for host in ("127.0.0.1", "localhost"):
        status, page, answer = ask(running, Host=f"{host}:{running.port}")
        assert status == 200 and "thermoformer explorer" in page
    policy = answer.getheader("content-security-policy")
    assert policy is not None and "default-src 'self'" in policy and "frame-ancestors 'none'" in policy
    assert answer.getheader("access-control-allow-origin") is None and answer.getheader("server") is None
    own = f"http://127.0.0.1:{running.port}"
    assert ask(running, path="/ws?session_id=s_abc123", Origin=own, **WEBSOCKET)[0] == 101


@pytest.mark.parametrize(
    ("headers", "status", "words"),
    [
        ({"Host": "rebound.example"}, 421, "host: got 'rebound.example'"),
        ({"Host": "127.0.0.1:1"}, 421, "host: got '127.0.0.1:1'"),
        ({"Origin": "http://elsewhere.example"}, 403, "origin: got 'http://elsewhere.example'"),
        ({"Origin": "null"}, 403, "origin: got 'null'"),
        ({"Origin": "http://["}, 403, "origin: got 'http://['"),
        ({"Origin": "http://127.0.0.1:1"}, 403, "origin: got 'http://127.0.0.1:1'"),
        ({"Sec_Fetch_Site": "cross-site", "Sec_Fetch_Mode": "no-cors"}, 403, "origin: got a request of another site"),
        ({"Sec_Fetch_Site": "same-site", "Sec_Fetch_Mode": "cors"}, 403, "origin: got a request of another site"),
    ],
)
def test_others_are_refused(running, headers, status, words):
    got = ask(running, **headers)
    assert got[0] == status and words in got[1]
    upgraded = ask(running, path="/ws?session_id=s_abc123", **(headers | WEBSOCKET))
    assert upgraded[0] == 403
    posted = ask(running, "POST", "/api/kernel/set_ui_element_value", body=b"{}", **headers)
    assert posted[0] == status


def test_a_link_from_elsewhere_opens_the_page(running):
    assert ask(running, Sec_Fetch_Site="cross-site", Sec_Fetch_Mode="navigate")[0] == 200


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/api/kernel/execute"),
        ("POST", "/api/kernel/read_code"),
        ("POST", "/api/export/html"),
        ("GET", "/api/status/connections"),
        ("GET", "/terminal/ws"),
        ("GET", "/assets/../explorer.py"),
        ("PUT", "/"),
        ("OPTIONS", "/api/kernel/set_ui_element_value"),
    ],
)
def test_what_the_page_does_not_ask_for_is_not_there(running, method, path):
    assert ask(running, method, path)[0] == 404


def test_large_requests_are_refused(running):
    status, words, _ = ask(running, "POST", "/api/kernel/function_call", Content_Length=str(LARGEST_BODY + 1))
    assert status == 413 and f"expected at most {LARGEST_BODY}" in words


def test_it_listens_on_this_machine_alone(running):
    rows = [row.split() for row in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    listening = [row[1] for row in rows if row[3] == "0A" and row[1].endswith(f":{running.port:04X}")]
    assert listening == [f"0100007F:{running.port:04X}"]


def test_ctrl_c_ends_it_though_a_page_is_open():
    with explorer() as here, socket.create_connection(("127.0.0.1", here.port)) as page:
        host = f"127.0.0.1:{here.port}"
        lines = ["GET /ws?session_id=s_abc124 HTTP/1.1", f"Host: {host}", f"Origin: http://{host}"]
        lines += [f"{name.replace('_', '-')}: {value}" for name, value in WEBSOCKET.items()]
        page.sendall(("\r\n".join(lines) + "\r\n\r\n").encode())
        assert b"101" in page.recv(100)
        code, printed = here.stop()
    assert code == 0 and "Traceback" not in printed, printed


def test_pages_open_while_others_come_and_go():
    with explorer() as here:
        own = {"Origin": f"http://127.0.0.1:{here.port}"} | WEBSOCKET

        def come_and_go(number: int) -> list[int]:
            # The same page twice: the second comes back to what the first left, and leaves while it is being told.
            return [ask(here, path=f"/ws?session_id=s_abc{number:03d}", **own)[0] for _ in range(2)]

        with ThreadPoolExecutor(3) as readers:
            visits = [readers.submit(come_and_go, number) for number in range(12)]
            pages = [readers.submit(ask, here) for _ in range(60)]
            assert {status for visit in visits for status in visit.result()} == {101}
            assert {page.result()[0] for page in pages} == {200}
        code, printed = here.stop()
    assert code == 0 and "Traceback" not in printed, printed


def test_a_page_left_in_mid_sentence_is_no_fault():
    async def speak(scope, receive, send):
        if scope["says"]:
            with suppress(OSError):
                await send({"type": "websocket.send", "text": "..."})
        await receive()
        raise RuntimeError("nobody there")

    async def closed(message):
        raise ConnectionResetError

    async def left():
        return {"type": "websocket.disconnect", "code": 1001}

    async def there():
        return {"type": "websocket.receive", "text": "..."}

    for says, receive in ((True, there), (False, left)):
        asyncio.run(until_left(speak, {"type": "websocket", "says": says}, receive, closed))
    with pytest.raises(RuntimeError, match="nobody there"):
        asyncio.run(until_left(speak, {"type": "websocket", "says": False}, there, closed))


def test_beyond_this_machine_only_with_a_token():
    with explorer("--host", "0.0.0.0") as here:
        address, token = here.link.split("?access_token=")
        assert address == f"http://127.0.0.1:{here.port}/" and len(token) == 32
        status, page, _ = ask(here)
        assert status in (302, 303, 307, 401) and "thermoformer explorer" not in page
        status, page, answer = ask(here, path=f"/?access_token={token}")
        cookie = answer.getheader("set-cookie")
        assert status == 303 and answer.getheader("location") == "/" and cookie is not None
        assert ask(here, Cookie=cookie.split(";")[0])[0] == 200
        own = f"http://127.0.0.1:{here.port}"
        assert ask(here, path="/ws?session_id=s_abc123", Origin=own, **WEBSOCKET)[0] != 101
        assert ask(here, path=f"/?access_token={token}", Origin="http://elsewhere.example")[0] == 403
        assert ask(here, path="/?access_token=" + "0" * 32)[0] != 200


def test_places():
    assert place_for("127.0.0.1", 0) == Place() and place_for("::1", 0).local
    assert Place("::1").link(8000) == "http://[::1]:8000/"
    assert Place("0.0.0.0", token="a" * 16).hosts(8000) is None
    # Browsers leave the usual port of the web out.
    assert "127.0.0.1" in (Place().hosts(80) or ()) and "127.0.0.1" not in (Place().hosts(8000) or ())
    for given, words in (
        ({"host": "0.0.0.0"}, "token: got none; expected one"),
        ({"host": "example"}, "host: got 'example'"),
        ({"port": 70000}, "port: got 70000"),
        ({"token": "short"}, "token: got 5 characters"),
        ({"token": "a" * 15 + "&"}, "token: got 16 characters"),
    ):
        with pytest.raises(ValueError, match=words):
            Place(**given)
    for host, port, words in ((3, 0, "host: got 3; expected an address"), ("127.0.0.1", "80", "port: got '80'")):
        with pytest.raises(ValueError, match=words):
            place_for(host, port)


def test_the_command_says_what_is_wrong(running):
    for options, words in (
        (["--host", "example"], "host: got 'example'"),
        (["--token", "short"], "token: got 5 characters"),
        (["--port", str(running.port)], f"port: got {running.port} of 127.0.0.1"),
    ):
        result = CliRunner().invoke(app, ["explore", "--no-browser", *options])
        assert result.exit_code == 2 and words in result.output, result.output


def test_bodies_without_a_length_are_counted():
    """Pieces beyond the limit never reach the page's server."""
    got = []

    async def application(scope, receive, send):
        while (message := await receive())["type"] == "http.request":
            got.append(len(message["body"]))

    async def receive():
        return {"type": "http.request", "body": bytes(2**20), "more_body": True}

    async def send(message):
        pass

    scope = {"type": "http", "method": "POST", "path": "/api/kernel/function_call", "headers": [(b"host", b"h:1")]}
    asyncio.run(Guard(application, ["h:1"])(scope, receive, send))
    assert sum(got) == LARGEST_BODY
