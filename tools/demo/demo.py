"""The main job, told step by step: what happens, why, and the lines to do it yourself.

Every number printed is measured in this run, and every claim is checked: if one does not hold, the
demo says so and exits with status 1. Started by tools/demo.sh.
"""

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import cairn

HERE = Path(__file__).resolve().parent
KV_DUMP = HERE.parent.parent / "build" / "bin" / "kv-dump"
STEPS, SAVE_EVERY, DIE_AT = 120, 20, 80
FINETUNE_FIRST, FINETUNE_STEPS, FINETUNE_SAVE_EVERY = 1000, 90, 30
MARKER = ".cairn-demo"  # marks a folder as ours to wipe


def say(text: str = "") -> None:
    print(text, flush=True)


def check(holds: bool, claim: str) -> None:
    if not holds:
        sys.exit(f"demo: this does not hold: {claim}")


def human(count: float) -> str:
    for unit in ("B", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.2f} GiB"


def run_program(name: str, *arguments: object) -> int:
    """Runs a program of this folder; returns its exit status, negative for the signal it died of."""
    command = [sys.executable, str(HERE / name), *map(str, arguments)]
    # torch's threads sleep while they wait: on a busy machine spinning costs several times as much.
    environment = {**os.environ, "OMP_WAIT_POLICY": "PASSIVE"}
    done = subprocess.run(command, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
                          env=environment)
    if done.returncode not in (0, -signal.SIGKILL):
        sys.exit(f"demo: {name} failed with status {done.returncode}:\n{done.stderr}")
    return done.returncode


def read_log(path: Path) -> list[dict]:
    # The last line may be cut short where the process died.
    lines = path.read_text().split("\n")[:-1]
    return [json.loads(line) for line in lines]


def losses_of(records: list[dict]) -> dict[int, str]:
    return {record["step"]: record["loss"] for record in records if "loss" in record}


def kv_dump(*arguments: str, expect: int = 0) -> None:
    """Runs and shows kv-dump; anything but exit status `expect` ends the demo."""
    shown = shlex.join(("build/bin/kv-dump", *arguments))
    say(f"  $ {shown}")
    done = subprocess.run([KV_DUMP, *arguments], capture_output=True, text=True)
    check(done.returncode == expect,
          f"{shown} exits with {expect} (it was {done.returncode}: {done.stderr.strip()})")
    for line in done.stdout.rstrip().split("\n"):
        say(f"  {line}".rstrip())
    say()


def reference(work: Path) -> dict[int, str]:
    say(f"1. The run as it should be: {STEPS} steps, no checkpoints, never interrupted")
    began = time.perf_counter()
    check(run_program("train.py", "--steps", STEPS, "--log", work / "reference.jsonl") == 0,
          "the reference run ends by itself")
    losses = losses_of(read_log(work / "reference.jsonl"))
    first, last = float.fromhex(losses[1]), float.fromhex(losses[STEPS])
    check(last < first, "training makes the loss smaller")
    say(f"   {time.perf_counter() - began:.0f} s; loss {first:.3f} -> {last:.3f}")
    say()
    return losses


def leftovers(store: Path, step: int) -> list[str]:
    """What the dead process left of `step`: payload in segments/, records in pending/."""
    found = sorted((store / "segments").glob(f"{step}-*")) + sorted((store / "pending").rglob("*"))
    return [str(path.relative_to(store)) + ("/" if path.is_dir() else "") for path in found]


def killed(work: Path, store: Path) -> tuple[int, list[str]]:
    """Trains until a save is cut off by SIGKILL. Returns the latest committed step and what the dead
    process left of the next one, relative to `store`.
    """
    say(f"2. The same run, saving every {SAVE_EVERY} steps, killed in the middle of a save")
    say("""
     store  = cairn.open(path, mode="a")
     handle = store.save_async(step, state)  # nested dicts of tensors and plain values
     handle.wait_staged()                    # just before the optimizer changes the tensors again
""")
    die_at = DIE_AT
    while True:
        status = run_program("train.py", "--steps", STEPS, "--store", store, "--save-every",
                             SAVE_EVERY, "--die-during-save", die_at, "--log",
                             work / "killed.jsonl")
        check(status == -signal.SIGKILL, f"a save from step {die_at} on was cut off by SIGKILL")
        dying = max(record.get("will_die_at", 0) for record in read_log(work / "killed.jsonl"))
        found = leftovers(store, dying)
        with cairn.open(store) as reader:
            committed = reader.steps()
        if dying not in committed and found:
            break
        say(f"   (step {dying} was committed before the signal came; trying again at the next save)")
        die_at = dying + SAVE_EVERY
    say(f"   The process is dead. Of step {dying} it left files that nothing refers to:")
    for line in found:
        say(f"     {line}")
    say(f"   Steps in the store: {committed}. Step {dying} is not there, not even in part: a step")
    say("   exists from one atomic index write on, and that is the last thing a save does.")
    check(committed == list(range(SAVE_EVERY, dying, SAVE_EVERY)),
          "every step before the killed one is committed")
    say()
    return committed[-1], found


def resumed(work: Path, store: Path, latest: int, left: list[str], expected: dict[int, str]) -> None:
    say(f"3. The same command again: it finds step {latest} and goes on")
    say("""
     store.load({"model": model.state_dict()}, strict=False)  # straight into the weights' memory
     saved = store.read(["optimizer", "scheduler", "rng", "step"])
     optimizer.load_state_dict(saved["optimizer"]); random.setstate(saved["rng"]["python"]); ...
""")
    check(run_program("train.py", "--steps", STEPS, "--store", store, "--save-every", SAVE_EVERY,
                      "--log", work / "resumed.jsonl") == 0, "the resumed run ends by itself")
    records = read_log(work / "resumed.jsonl")
    losses = losses_of(records)
    say("     step   never killed                    killed and resumed")
    for step in (latest + 1, latest + 2, (latest + STEPS) // 2, STEPS):
        say(f"     {step:4}   " + "   ".join(
            f"{float.fromhex(value):.6f} {value:20}" for value in (expected[step], losses[step])))
    check(sorted(losses) == list(range(latest + 1, STEPS + 1)),
          f"the resumed run does steps {latest + 1} to {STEPS} and no other")
    different = [step for step in losses if losses[step] != expected[step]]
    check(not different, f"the losses agree bit for bit (they differ at steps {different[:5]})")
    before = losses_of(read_log(work / "killed.jsonl"))
    check(all(before[step] == expected[step] for step in before),
          "saving in the background did not change the training")
    say(f"   All {len(losses)} losses after the resume are the same to the last bit, and so are those")
    say("   of the run that was killed: weights, AdamW's moments, the schedule, dropout's and the")
    say("   data's random states all came back exactly.")
    check(not any((store / name).exists() for name in left),
          "what the dead process left was swept by the next open for writing")
    say("   What the dead process had left was swept as the store was opened for writing.")

    calls = [record["save_call_s"] for record in records if "save_call_s" in record]
    waits = [record.get("staging_wait_s", 0.0) for record in records]
    last = records[-1]
    say(f"   A checkpoint is {human(last['logical_bytes'])}; the training stood still for "
        f"{1000 * (sum(calls) + sum(waits)) / len(calls):.1f} ms a save, the rest went on behind it.")
    say()


def finetuned(work: Path, store: Path) -> list[int]:
    say("4. A fine-tune, on one licence, that wants only a part: the embedding and two of the four")
    say("   layers, frozen, with a small new adapter to train behind them")
    say("""
     frozen = {k: v for k, v in model.state_dict().items() if k.startswith(("embed.", "layers."))}
     store.load({"model": frozen}, step=120, strict=False)  # reads these keys' bytes, no others
     store.save(1030, state)                                # same store: what is there is not written
""")
    check(run_program("finetune.py", "--store", store, "--from-step", STEPS, "--first-step",
                      FINETUNE_FIRST, "--steps", FINETUNE_STEPS, "--save-every",
                      FINETUNE_SAVE_EVERY, "--log", work / "finetune.jsonl") == 0,
          "the fine-tune ends by itself")
    records = read_log(work / "finetune.jsonl")
    loaded = records[0]
    check(not loaded["missing"], "the step has every key that the fine-tune asks for")
    with cairn.open(store) as reader:
        stored = reader.keys(step=STEPS)
        # The tied head shares the embedding's bytes; they count once.
        whole = sum(info.nbytes for info in stored.values() if info.alias_of is None)
    say(f"   Read {human(loaded['bytes_read'])} for {loaded['keys']} tensors; the step's tensors are "
        f"{human(whole)}.")
    check(loaded["bytes_read"] < whole / 2, "a partial load reads only a part")
    curve = [record["loss"] for record in records if "loss" in record]
    window = 20
    first, last = sum(curve[:window]) / window, sum(curve[-window:]) / window
    check(last < first, "the fine-tune learns")
    say(f"   Loss {first:.3f} -> {last:.3f} (means of {window} steps).")

    saves = [record for record in records if "saved" in record]
    with cairn.open(store) as reader:
        state = reader.read(step=saves[-1]["saved"])
    with cairn.open(work / "full", mode="a") as other:  # an empty store has nothing to refer to
        full = other.save(1, state).written_bytes
    say(f"   A full save of this state writes {human(full)}. What these saves wrote:")
    for record in saves:
        part = 100 * record["written_bytes"] / full
        say(f"     step {record['saved']}: {human(record['written_bytes']):>10}  ({part:.1f} % of it; "
            f"{record['chunks_reused']} of {record['chunks']} chunks are references)")
        check(record["written_bytes"] < full / 2, "frozen tensors are not written again")
    say("   Even the first one refers to the bytes that step 120 had written. Each step still lists all")
    say("   of its chunks, so there is no chain to follow: any step can be deleted at any time.")
    say()
    return [record["saved"] for record in saves]


def inspected(store: Path, saves: list[int]) -> None:
    say("5. Look inside, from a shell: kv-dump only looks")
    say()
    name = str(store)
    kv_dump(name)
    kv_dump("steps", name)
    kv_dump("keys", f"{name}@{saves[-1]}", "model.layers.1", "!**.bias", "step")
    kv_dump("diff", f"{name}@{saves[0]}", f"{name}@{saves[-1]}", "model", expect=1)
    kv_dump("verify", name)


def main() -> None:
    began = time.perf_counter()
    work = Path(sys.argv[1])
    if work.exists():
        if not (work / MARKER).exists():
            sys.exit(f"demo: {work} exists and was not made by the demo; name another folder")
        shutil.rmtree(work)
    work.mkdir(parents=True)
    (work / MARKER).touch()
    store = work / "store"

    say(f"Cairn's main job, in {work}/. The programs are tools/demo/train.py and finetune.py: plain")
    say("torch on two cores, a GPT of 3.3 million parameters over bytes, AdamW, and for text the")
    say("licences that every Debian machine has.")
    say()
    expected = reference(work)
    latest, left = killed(work, store)
    resumed(work, store, latest, left, expected)
    saves = finetuned(work, store)
    inspected(store, saves)
    say(f"Done in {time.perf_counter() - began:.0f} s; everything claimed above was checked.")
    say(f"The store is {store}: try build/bin/kv-dump show {store}@{STEPS} model.norm.weight,")
    say("or .venv/bin/python -c 'import cairn; help(cairn)'.")


if __name__ == "__main__":
    main()
