"""The agent's command line, data directory and address."""

import os
import stat
from pathlib import Path

import pytest

from manifests.kinds.guard import Tier
from node_agent.data_dir import DataDir, DataDirError
from node_agent.host.simulated import SimulatedMachine
from node_agent.server import ListenError, find_route_host, open_socket, plan_address
from node_agent.settings import ListenAddress, SettingsError, parse_settings

GIB = 1 << 30


WHOLE = (
    "--name mac-1 --controller http://c:7070/ --listen [::1]:0 --data /d --ram 16Gi "
    "--wired-limit 12Gi --other-apps 1Gi --label room=lab --label a.b/c=d "
    "--advertise http://mac-1:7071 --tier safe --grace 1m --log-format json"
)


def test_a_whole_command_line_is_read() -> None:
    settings = parse_settings(WHOLE.split())
    assert (settings.name, settings.controller_url) == ("mac-1", "http://c:7070")
    assert settings.listen == ListenAddress("::1", 0)
    assert settings.simulated == SimulatedMachine(16 * GIB, 12 * GIB, GIB)
    assert settings.labels == {"room": "lab", "a.b/c": "d"}
    assert settings.guard.tier is Tier.SAFE
    assert (settings.grace_seconds, settings.log_format) == (60.0, "json")
    assert settings.advertise == "http://mac-1:7071"


def test_every_fault_is_told_at_once_with_its_flag() -> None:
    line = (
        "--name Bad_Name --controller c:7070 --listen 7071 --label x --tier custom "
        "--grace 30 --wired-limit 1Gi"
    )
    with pytest.raises(SettingsError) as caught:
        parse_settings(line.split())
    flags = [fault.split(":")[0] for fault in caught.value.faults]
    assert sorted(flags) == sorted(
        ["--name", "--controller", "--listen", "--label", "--tier", "--grace", "--wired-limit"]
    )


def test_the_line_for_memory_is_bounded_as_told() -> None:
    told = parse_settings(["--memory-line", "3", "--memory-wait", "5s"])
    assert (told.memory_line, told.memory_wait_seconds) == (3, 5.0)
    with pytest.raises(SettingsError) as caught:
        parse_settings(["--memory-line", "-1"])
    assert caught.value.faults[0].startswith("--memory-line: not a count")


def test_quantities_of_the_simulated_machine_are_checked() -> None:
    with pytest.raises(SettingsError, match="--ram: unknown unit 'GB'"):
        parse_settings(["--ram", "16GB"])
    with pytest.raises(SettingsError, match="--ram: must be more than 0"):
        parse_settings(["--ram", "0"])


def test_other_apps_of_a_simulated_machine_can_live_in_a_file(tmp_path: Path) -> None:
    file = tmp_path / "others"
    file.write_text("3Gi")
    settings = parse_settings(["--name", "a", "--ram", "16Gi", "--other-apps", f"@{file}"])
    assert settings.simulated == SimulatedMachine(16 * GIB, None, 3 * GIB, file)
    with pytest.raises(SettingsError, match="--other-apps: cannot read"):
        parse_settings(["--ram", "16Gi", "--other-apps", f"@{tmp_path / 'missing'}"])


def test_a_data_directory_is_private_and_held_by_one_agent(tmp_path: Path) -> None:
    held = DataDir(tmp_path / "d")
    assert stat.S_IMODE((tmp_path / "d").stat().st_mode) == 0o700
    with pytest.raises(DataDirError, match=f"pid {os.getpid()}"):
        DataDir(tmp_path / "d")
    held.release()
    DataDir(tmp_path / "d").release()


def test_a_data_directory_that_cannot_be_is_told_with_its_flag(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(DataDirError, match="--data: cannot use"):
        DataDir(tmp_path / "file")


def test_an_address_in_use_is_told_with_its_flag() -> None:
    with open_socket(ListenAddress("127.0.0.1", 0)) as held:
        port = held.getsockname()[1]
        with pytest.raises(ListenError, match=f"--listen: 127.0.0.1:{port}"):
            open_socket(ListenAddress("127.0.0.1", port))


def test_the_advertised_address_can_be_reached_from_elsewhere() -> None:
    assert plan_address("127.0.0.1", 7, "10.0.0.9") == "http://127.0.0.1:7"
    assert plan_address("0.0.0.0", 7, "10.0.0.9") == "http://10.0.0.9:7"
    assert plan_address("::", 7, "fd00::1") == "http://[fd00::1]:7"
    assert find_route_host("http://127.0.0.1:7070") == "127.0.0.1"
