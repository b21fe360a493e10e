"""What the server refuses: other hosts and origins, wrong tokens, paths that lead elsewhere, bodies that are none."""

import http.client
import json

import pytest


def ask(served, path, *, method="GET", host=None, body=None, **headers):
    """Status, headers and body of one request, its path sent as it is."""
    connection = http.client.HTTPConnection("127.0.0.1", served.port, timeout=30)
    connection.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
    connection.putheader("Host", host or f"127.0.0.1:{served.port}")
    for name, value in headers.items():
        connection.putheader(name.replace("_", "-"), value)
    if body is not None:
        connection.putheader("Content-Length", str(len(body)))
    connection.endheaders(body)
    answer = connection.getresponse()
    found = answer.status, dict(answer.getheaders()), answer.read()
    connection.close()
    return found


def test_the_page_and_its_headers(served):
    status, headers, body = ask(served, f"/{served.token}/")
    assert status == 200
    assert b"<h1>Review of" in body
    policy = headers["content-security-policy"]
    assert policy.startswith("default-src 'none'; script-src 'self'")
    assert "unsafe" not in policy
    assert headers["referrer-policy"] == "no-referrer"
    assert headers["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize("path", ["/", "/wrong/", "/{token}x/", "/{cut}/", "//{token}/", "/wrong/api/start"])
def test_a_wrong_token_finds_nothing(served, path):
    status, _, body = ask(served, path.format(token=served.token, cut=served.token[:-1]))
    assert status == 404
    assert served.token.encode() not in body


@pytest.mark.parametrize(
    "headers",
    [
        {"host": "evil.example"},
        {"host": "127.0.0.1:1"},
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Sec_Fetch_Site": "cross-site"},
        {"Sec_Fetch_Site": "same-site"},
    ],
)
def test_other_hosts_and_pages_are_refused_even_with_the_token(served, headers):
    status, _, _ = ask(served, f"/{served.token}/api/start", **headers)
    assert status == 403


@pytest.mark.parametrize(
    "path",
    [
        "../../etc/passwd",
        "%2e%2e/%2e%2e/etc/passwd",
        "page.html",
        "../server.py",
        "image/small/../../config.yaml",
        "image/small/-1",
        "image/small/999",
        "review.jsonl",
    ],
)
def test_paths_lead_nowhere_else(served, path):
    status, _, body = ask(served, f"/{served.token}/{path}")
    assert status in (400, 404)
    assert b"root:" not in body
    assert b"import" not in body


def decide(served, body, **headers):
    headers = {"Content_Type": "application/json", **headers}
    return ask(served, f"/{served.token}/api/decide", method="POST", body=body, **headers)


GOOD = {"index": 3, "choice": "keep", "reviewer": "Ada"}


def test_a_decision_from_the_page_itself_is_written(served):
    status, _, body = decide(served, json.dumps(GOOD).encode(), Origin=f"http://127.0.0.1:{served.port}")
    assert status == 200
    assert json.loads(body)["item"]["decisions"] == [
        {
            "reviewer": "Ada",
            "choice": "keep",
            "label": served.review.item(int(served.review.queue.row_of[3]))["given_label"],
        }
    ]


@pytest.mark.parametrize(
    ("body", "headers", "status"),
    [
        (json.dumps(GOOD).encode(), {"Content_Type": "text/plain"}, 415),  # what a form of another page can send
        (json.dumps(GOOD).encode(), {"Origin": "http://evil.example"}, 403),
        (b"{" + b" " * 20_000, {}, 413),
        (b"no json", {}, 400),
        (b"[]", {}, 400),
        (json.dumps({**GOOD, "index": 30}).encode(), {}, 400),
        (json.dumps({**GOOD, "index": "3"}).encode(), {}, 400),
        (json.dumps({**GOOD, "index": True}).encode(), {}, 400),
        (json.dumps({**GOOD, "choice": "delete"}).encode(), {}, 400),
        (json.dumps({**GOOD, "choice": "other", "label": 3}).encode(), {}, 400),
        (json.dumps({**GOOD, "reviewer": "two\nlines"}).encode(), {}, 400),
        (json.dumps({**GOOD, "path": "/etc"}).encode(), {}, 400),
    ],
)
def test_what_is_no_decision_is_refused_and_nothing_is_written(served, body, headers, status):
    assert decide(served, body, **headers)[0] == status
    assert served.review.decisions.decided() == []


def test_a_get_decides_nothing(served):
    assert ask(served, f"/{served.token}/api/decide")[0] == 405


def test_images_are_images(served):
    status, headers, body = ask(served, f"/{served.token}/image/small/0")
    assert (status, headers["content-type"]) == (200, "image/png")
    assert body.startswith(b"\x89PNG")
