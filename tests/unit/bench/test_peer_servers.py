from dataclasses import replace
from pathlib import Path

import pytest

from tests.bench.peer_servers import (
    PEERS,
    Peer,
    PeerServer,
    Place,
    build_servers,
    explain_missing,
    find_program,
)

OMLX = next(peer for peer in PEERS if peer.name == "omlx")
UNKNOWN = replace(OMLX, program="no-such-program-anywhere")


def make_program(path: Path, text: str = "#!/bin/sh\nexec sleep 600\n") -> Path:
    path.write_text(text)
    path.chmod(0o755)
    return path


def test_a_peer_is_found_by_its_variable_before_the_path(tmp_path: Path) -> None:
    named = make_program(tmp_path / "named")
    make_program(tmp_path / OMLX.program)
    assert find_program(OMLX, {OMLX.variable: str(named), "PATH": str(tmp_path)}) == named
    assert find_program(OMLX, {"PATH": str(tmp_path)}) == tmp_path / OMLX.program


def test_a_variable_that_names_nothing_is_not_replaced_by_another_program(tmp_path: Path) -> None:
    make_program(tmp_path / OMLX.program)
    environment = {OMLX.variable: str(tmp_path / "gone"), "PATH": str(tmp_path)}
    assert find_program(OMLX, environment) is None


def test_a_missing_peer_is_said_with_its_packages_and_its_variable(tmp_path: Path) -> None:
    assert find_program(UNKNOWN, {"PATH": str(tmp_path)}) is None
    assert "pip install" in explain_missing(UNKNOWN)
    assert UNKNOWN.variable in explain_missing(UNKNOWN)


@pytest.mark.parametrize("peer", PEERS, ids=lambda peer: peer.name)
def test_every_peer_gets_the_port_and_listens_on_loopback_only(peer: Peer, tmp_path: Path) -> None:
    model = tmp_path / "weights"
    model.mkdir()
    arguments = peer.arguments(Place(model, 4242, tmp_path))
    assert arguments[arguments.index("--port") + 1] == "4242"
    assert arguments[arguments.index("--host") + 1] == "127.0.0.1"


def test_a_folder_of_models_holds_only_the_measured_one(tmp_path: Path) -> None:
    model = tmp_path / "weights"
    model.mkdir()
    place = Place(model, 1, tmp_path)
    assert [path.resolve() for path in place.models.iterdir()] == [model]
    assert place.models == place.models


def test_servers_are_built_only_for_programs_that_are_there(tmp_path: Path) -> None:
    programs = {"mlxfleet": None, "omlx": Path("/bin/true"), "vllm-mlx": None}
    servers = build_servers(programs, tmp_path / "weights", tmp_path / "runs")
    assert list(servers) == ["mlxfleet", "omlx"]


def test_a_peer_is_ended_by_its_own_process_and_keeps_its_directory(tmp_path: Path) -> None:
    program = make_program(tmp_path / "sleeper")
    peer = replace(OMLX, arguments=lambda place: [])
    server = PeerServer(peer, program, Place(tmp_path, 1, tmp_path))
    server.start()
    first = server.process
    assert server.is_alive()
    server.restart()
    assert first is not None
    assert first.poll() is not None
    assert server.is_alive()
    server.stop()
    assert not server.is_alive()
    assert (tmp_path / "log").exists()
