"""The demo with a kill -9 of everything that it is made of, in the middle of its work."""

from pathlib import Path

from tests.e2e.demo_process import running_demo


def test_it_ends_well_although_hub_agent_and_database_are_killed_in_the_middle(tmp_path: Path):
    with running_demo(tmp_path / "demo") as demo:
        demo.until("submitted 41 jobs")
        demo.until("running: ")
        demo.kill("hub")
        demo.until("hub was started again")
        demo.kill("agent-hopper")
        demo.until("agent-hopper was started again")
        demo.kill("postgres")
        found = demo.end()
        assert demo.process.returncode == 0, demo.text
        assert (found["finished"], found["never_fit"], found["double_runs"], found["lost"]) == (40, 1, 0, 0), demo.text
