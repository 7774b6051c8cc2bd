"""A cluster file is right, or one line says what in it is not."""

from __future__ import annotations

from pathlib import Path

import pytest

from aiops.errors import ConfigError
from aiops_cli.cluster_file import read_cluster_file

GOOD = """
workers = 2

[scheduler]
address = "127.0.0.1:9070"

[[servers]]
address = "10.0.0.2:9071"
bind = "0.0.0.0:9071"

[[servers]]
address = "[::1]:9072"
"""


def read(folder: Path, text: str) -> object:
    path = folder / "cluster.toml"
    path.write_text(text)
    return read_cluster_file(path)


def test_a_good_file(tmp_path: Path) -> None:
    path = tmp_path / "cluster.toml"
    path.write_text(GOOD)
    cluster = read_cluster_file(path)
    assert cluster.workers == 2
    assert cluster.scheduler.bind == cluster.scheduler.address == "127.0.0.1:9070"
    assert [server.address for server in cluster.servers] == ["10.0.0.2:9071", "[::1]:9072"]
    assert [server.bind for server in cluster.servers] == ["0.0.0.0:9071", "[::1]:9072"]
    assert cluster.server(1).address == "[::1]:9072"
    with pytest.raises(ConfigError, match="2 servers, so it goes from 0 to 1"):
        cluster.server(2)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (("workers = 2", "workers = 0"), "workers must be a whole number"),
        (("workers = 2", "workers = true"), "workers must be a whole number"),
        (("workers = 2", ""), "workers must be a whole number"),
        (("workers = 2", "workers = 2\nworker = 3"), "the file has worker, but only"),
        (("9072", "0"), "address of server 1 must be a text host:port with a fixed port"),
        (("9072", "99999"), "address of server 1"),
        ((":9072", ""), "address of server 1"),
        (("bind =", "port ="), "server 0 has port, but only address, bind is known"),
        (("9070", "9071", "10.0.0.2", "127.0.0.1"), "127.0.0.1:9071 appears twice"),
        (("[scheduler]", "[schedulers]"), "the file has schedulers"),
        (("[scheduler]", "[["), "not TOML"),
        (("[[servers]]", "[[other]]"), "the file has other"),
    ],
)
def test_each_mistake_is_named(tmp_path: Path, change: tuple[str, ...], says: str) -> None:
    text = GOOD
    for old, new in zip(change[::2], change[1::2], strict=True):
        text = text.replace(old, new)
    with pytest.raises(ConfigError, match=says) as caught:
        read(tmp_path, text)
    assert "cluster.toml" in str(caught.value)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot read .*none\.toml: No such file"):
        read_cluster_file(tmp_path / "none.toml")
