"""Keys: who has which role, what is kept of them, and that a key taken back counts no more."""

from __future__ import annotations

import json
import stat
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from serving import ask, png, problem, serving

from holdfast.errors import ConfigError
from holdfast.service import callers
from holdfast.service import keys as module
from holdfast.service.keys import KeyRing, add_key, read_keys, remove_key


@pytest.fixture
def file(tmp_path):
    return tmp_path / "keys.json"


def test_only_a_salted_hash_is_kept(file):
    word, other = add_key(file, "alice", ["read"]), add_key(file, "bob", ["read", "write"])
    assert word != other
    assert len(word) > 40
    assert word not in file.read_text()
    alice, bob = read_keys(file)
    assert alice.salt != bob.salt
    assert alice.hash != bob.hash
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    ring = KeyRing(file)
    assert ring.find(word) == alice
    assert ring.find(other) == bob
    for wrong in ("", word[:-1], word + "x", word.upper(), alice.hash, "x" * 10_000):
        assert ring.find(wrong) is None


def test_every_key_is_compared_in_constant_time(file, monkeypatch):
    words = [add_key(file, name, ["read"]) for name in "abc"]
    compared = []
    real = module.hmac.compare_digest

    def counted(one, other):
        compared.append(other)
        return real(one, other)

    monkeypatch.setattr(module.hmac, "compare_digest", counted)
    assert KeyRing(file).find(words[0]).name == "a"
    assert len(compared) == 3


@pytest.mark.parametrize(
    ("name", "roles", "says"),
    [
        ("alice", ["read"], "has a key of 'alice' already"),
        ("a b", ["read"], "a key's name"),
        ("x", ["admin"], "unknown role 'admin'; known: read, write, attack"),
        ("x", [], "at least one role"),
    ],
)
def test_keys_that_cannot_be(file, name, roles, says):
    add_key(file, "alice", ["read"])
    before = file.read_text()
    with pytest.raises(ConfigError, match=says):
        add_key(file, name, roles)
    assert file.read_text() == before


def test_files_that_are_no_keys(file):
    with pytest.raises(ConfigError, match="no file of keys"):
        KeyRing(file)
    for text in ("", "[]", '{"keys": [{}]}', json.dumps({"keys": [{"name": "x", "roles": ["read"]}]})):
        file.write_text(text)
        with pytest.raises(ConfigError, match="not a file of keys"):
            KeyRing(file)
    with pytest.raises(ConfigError, match="not a file of keys"):
        add_key(file, "x", ["read"])


def test_roles_decide(own_shop, file, tmp_path):
    reader, writer = add_key(file, "reader", ["read"]), add_key(file, "writer", ["read", "write", "attack"])
    with serving(own_shop, tmp_path / "c", keys=KeyRing(file), writable=True) as (client, _):
        for path in ("/api/v1/status", "/metrics"):
            answer = client.get(path)
            problem(answer, 401, "a key is needed")
            assert answer.headers["www-authenticate"] == "Bearer"
            problem(client.get(path, headers={"authorization": "Bearer wrong"}), 401, "not known")
            problem(client.get(path, headers={"authorization": f"Basic {reader}"}), 401, "a key is needed")
        assert client.get("/healthz").status_code == 200
        one, all_ = {"authorization": f"Bearer {reader}"}, {"x-api-key": writer}
        assert client.get("/api/v1/status", headers=one).json()["roles"] == ["read"]
        assert client.get("/api/v1/status", headers=all_).json()["roles"] == ["read", "write", "attack"]
        assert ask(client, png(), k=1, headers=one).status_code == 200
        problem(ask(client, png(), path="attack", threat="linf:0.1", headers=one), 403, "role 'attack'")
        problem(ask(client, png(), path="items", id="x", headers=one), 403, "role 'write'; yours has read")
        problem(client.delete("/api/v1/items/x", headers=one), 403, "role 'write'")
        assert ask(client, png(), path="items", id="x", headers=all_).status_code == 201
        big = {"content-type": "multipart/form-data; boundary=x"}
        problem(client.post("/api/v1/search", content=b"a" * 10**6, headers=big), 401, "a key is needed")

        remove_key(file, "reader")
        problem(ask(client, png(), k=1, headers=one), 401, "not known")
        assert ask(client, png(), k=1, headers=all_).status_code == 200
        file.write_text("broken")
        said = problem(ask(client, png(), k=1, headers=all_), 503, "cannot be read now")
        assert str(file) not in said["detail"]


def test_the_file_of_keys_keeps_who_may_read_it(tmp_path):
    path = tmp_path / "keys.json"
    add_key(path, "first", ["read"])
    assert path.stat().st_mode & 0o777 == 0o600
    path.chmod(0o640)
    add_key(path, "second", ["read"])
    assert path.stat().st_mode & 0o777 == 0o640


def test_keys_that_are_added_at_once_are_all_there(tmp_path):
    path = tmp_path / "keys.json"
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda number: add_key(path, f"n{number}", ["read"]), range(16)))
    assert {key.name for key in read_keys(path)} == {f"n{number}" for number in range(16)}


def test_a_key_has_its_rate_and_its_quota(shop, file, tmp_path, monkeypatch):
    slow, few, any_ = (
        {"x-api-key": add_key(file, name, ["read"], **options)}
        for name, options in [("slow", {"rate": 0.5}), ("few", {"quota": 2}), ("any", {})]
    )
    with serving(shop, tmp_path / "c", keys=KeyRing(file)) as (client, _):

        def status(key):
            return client.get("/api/v1/status", headers=key)

        assert [status(slow).status_code for _ in range(3)] == [200, 200, 429]
        refused = status(slow)
        problem(refused, 429, "0.5 requests a second")
        assert 1 <= int(refused.headers["retry-after"]) <= 2
        assert [status(few).status_code for _ in range(2)] == [200, 200]
        refused = status(few)
        problem(refused, 429, "2 requests a day, and has")
        assert 1 <= int(refused.headers["retry-after"]) <= 86_400
        now = time.time()
        monkeypatch.setattr(callers.time, "time", lambda: now + 86_400)
        assert status(few).status_code == 200, "another day"
        assert {status(any_).status_code for _ in range(10)} == {200}


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"rate": 0}, "requests a second above 0, not 0"),
        ({"rate": -1.5}, "above 0, not -1.5"),
        ({"rate": float("nan")}, "above 0, not nan"),
        ({"rate": float("inf")}, "above 0, not inf"),
        ({"rate": "5"}, "above 0, not '5'"),
        ({"rate": True}, "above 0, not True"),
        ({"quota": 0}, "1 at least, not 0"),
        ({"quota": 1.5}, "1 at least, not 1.5"),
        ({"quota": "many"}, "1 at least, not 'many'"),
    ],
)
def test_rates_and_quotas_that_cannot_be(file, options, says):
    with pytest.raises(ConfigError, match=says):
        add_key(file, "x", ["read"], **options)
    assert not file.exists()
    add_key(file, "x", ["read"])
    assert set(json.loads(file.read_text())["keys"][0]) == {"name", "roles", "salt", "hash", "created"}
    found = json.loads(file.read_text())
    found["keys"][0].update(options)
    file.write_text(json.dumps(found))
    with pytest.raises(ConfigError, match=says):
        read_keys(file)
