"""What steps hold in memory: measured on a real node, summed up by the yard, told with what to change."""

import json

import lab
import pytest

MIB = 1 << 20
# Holds 96 MiB of anonymous memory, and reads as much of a file that the kernel may drop.
HOLD = (
    "head -c 100663296 /dev/zero > file; cat file > /dev/null;"
    """ exec perl -e 'my $held = ""; vec($held, (96 << 20) - 1, 8) = 1; sleep 2'"""
)


def spec(request: str) -> str:
    resources = {"request": {"cpu": "100m", "memory": request, "disk": "300Mi"}}
    resources["limit"] = {"cpu": 1, "memory": "512Mi", "disk": "300Mi"}
    return json.dumps(
        {
            "apiVersion": "rollyard/v1",
            "kind": "RolloutJob",
            "name": "memory",
            "tasks": {"from": {"inline": [{"n": "1"}, {"n": "2"}]}},
            "group": {"size": 4},
            "defaults": {"image": "host", "timeout": "60s", "resources": resources},
            "steps": [{"name": "hold", "run": HOLD}],
        }
    )


def check(memory, advice):
    """All 8 attempts were counted, each with what it held and without the file it read."""
    assert memory.attempts == 8
    assert 96 * MIB <= memory.held_p95_bytes <= memory.held_most_bytes < 150 * MIB, memory
    assert memory.kernel_peak_bytes >= memory.held_most_bytes
    assert (memory.advice and memory.advice.code) == advice


@pytest.mark.parametrize("request_memory, advice", [("400Mi", "asks_too_much"), ("128Mi", None), ("64Mi", "asks_too_little")])
def test_a_job_tells_what_its_attempts_held_and_what_to_ask_for(yard, request_memory, advice):
    job = json.loads(yard.call("run", yard.spec(spec(request_memory)), "--table", yard.table, "--output", "json").stdout)
    job = job["job"]["id"]
    held = [row["memory_held_peak_bytes"] for row in yard.rows("steps")]
    assert len(held) == 8 and min(held) >= 96 * MIB
    # The yard has ended: this is what it left.
    (memory,) = yard.json("show", job)["memory"]
    assert (memory["step"], memory["attempts"]) == ("hold", 8)
    assert memory["held_most_bytes"] == max(held)
    told = yard.call("show", job).stdout
    asks = memory["told"].split(",")[0]
    assert asks == f"asks {request_memory}" and memory["told"] in told
    assert ("resources.request.memory:" in told) == (advice is not None), told
    why = yard.call("explain", job).stdout
    assert ("resources.request.memory:" in why) == (advice is not None), why
    step = yard.call("explain", f"{job}-g0-s0/hold").stdout
    assert "Memory of step `hold`: " + memory["told"] in step


def test_python_has_the_numbers(client, yard):
    job = client.submit(yard.spec(spec("400Mi")), table="out")
    info = job.wait(timeout=lab.HANG_S)
    assert info.memory is None, "a watch does not tell it"
    memory = job.info().memory["hold"]
    check(memory, "asks_too_much")
    assert memory.request_bytes == memory.kept_bytes == 400 * MIB
    assert 96 * MIB < memory.advice.suggested_bytes < 200 * MIB
    assert memory.advice.field == "resources.request.memory"
