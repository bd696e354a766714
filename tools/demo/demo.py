"""Demonstrates the main job step by step: what happens, why, and the code that does it.

Every printed number is measured in this run, and every claim is checked: if one does not hold, the
demo prints it and exits with status 1. Started by tools/demo.sh.
"""

import json
import shlex
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import torch

import cairn
from finetune import finetune

HERE = Path(__file__).resolve().parent
KV_DUMP = HERE.parent.parent / "build" / "bin" / "kv-dump"
STEPS, SAVE_EVERY, DIE_AT = 120, 20, 80
FINETUNE_FIRST, FINETUNE_STEPS, FINETUNE_SAVE_EVERY = 1000, 90, 30
PUBLISH_FIRST, PUBLISH_STEPS = 2000, 7
MARKER = ".cairn-demo"  # marks a folder that the demo may delete


def say(text: str, indent: int = 3) -> None:
    """Prints one paragraph, wrapped."""
    print(textwrap.fill(text, 96, initial_indent=" " * indent, subsequent_indent=" " * indent,
                        break_long_words=False, break_on_hyphens=False), flush=True)


def headline(text: str) -> None:
    print(f"\n{text}", flush=True)


def show(text: str) -> None:
    """Prints code or a table unchanged, between empty lines."""
    print("\n" + textwrap.indent(textwrap.dedent(text).strip("\n"), " " * 5) + "\n", flush=True)


def check(holds: bool, claim: str) -> None:
    if not holds:
        sys.exit(f"demo: failed check: {claim}")


def mib(count: int) -> str:
    return f"{count / 2**20:.2f} MiB"


def start_program(name: str, **options: object) -> subprocess.Popen:
    """Starts a program in this folder with `--option value` for each option."""
    command = [sys.executable, str(HERE / name)]
    for option, value in options.items():
        command += [f"--{option.replace('_', '-')}", str(value)]
    return subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)


def run_program(name: str, **options: object) -> int:
    """Runs a program as `start_program` starts it. Returns its exit status, which is negative if a
    signal ended it. The demo fails unless the status is 0 or -SIGKILL.
    """
    with start_program(name, **options) as program:
        _, errors = program.communicate()
    if program.returncode not in (0, -signal.SIGKILL):
        sys.exit(f"demo: {name} failed with status {program.returncode}:\n{errors}")
    return program.returncode


def read_log(path: Path) -> list[dict]:
    # The last line may be incomplete if the process died.
    return [json.loads(line) for line in path.read_text().split("\n")[:-1]]


def losses_of(records: list[dict]) -> dict[int, str]:
    return {record["step"]: record["loss"] for record in records if "loss" in record}


def kv_dump(*arguments: str, expect: int = 0) -> None:
    """Runs kv-dump and prints its output; the demo fails if the exit status is not `expect`."""
    command = shlex.join(("build/bin/kv-dump", *arguments))
    done = subprocess.run([KV_DUMP, *arguments], capture_output=True, text=True)
    check(done.returncode == expect,
          f"{command} exits with {expect} (it was {done.returncode}: {done.stderr.strip()})")
    print(f"   $ {command}\n{textwrap.indent(done.stdout.rstrip(), '   ')}\n", flush=True)


def reference(work: Path) -> dict[int, str]:
    """Returns the loss of every step, as hexadecimal floats."""
    headline(f"1. Reference run: {STEPS} steps, no checkpoints, never interrupted")
    began = time.perf_counter()
    status = run_program("train.py", steps=STEPS, log=work / "reference.jsonl")
    check(status == 0, "the reference run ends normally")
    losses = losses_of(read_log(work / "reference.jsonl"))
    first, last = float.fromhex(losses[1]), float.fromhex(losses[STEPS])
    check(last < first, "training reduces the loss")
    say(f"{time.perf_counter() - began:.0f} s; loss {first:.3f} -> {last:.3f}")
    return losses


def leftovers(store: Path) -> list[str]:
    """Returns the segments that no step uses: they belong to the save that did not end."""
    command = [KV_DUMP, "segments", store, "--json"]
    listing = subprocess.run(command, capture_output=True, check=True)
    used = {segment["segment"] for segment in json.loads(listing.stdout)["segments"]}
    found = sorted(path for path in (store / "segments").iterdir() if path.name not in used)
    return [str(path.relative_to(store)) for path in found]


def killed(work: Path, store: Path) -> tuple[int, list[str]]:
    """Trains until SIGKILL interrupts a save. Returns the latest committed step, and the files of
    the next step that the killed process left, relative to `store`.
    """
    headline(f"2. The same run, saving every {SAVE_EVERY} steps, killed during a save")
    show("""
        store  = cairn.open(path, mode="a")
        handle = store.save_async(step, state)  # nested dicts of tensors and plain values
        handle.wait_staged()                    # just before the optimizer changes the tensors
    """)
    die_at = DIE_AT
    while True:
        status = run_program("train.py", steps=STEPS, store=store, save_every=SAVE_EVERY,
                             die_during_save=die_at, log=work / "killed.jsonl")
        check(status == -signal.SIGKILL, f"SIGKILL interrupted a save of step {die_at} or later")
        dying = max(record.get("will_die_at", 0) for record in read_log(work / "killed.jsonl"))
        found = leftovers(store)
        with cairn.open(store) as reader:
            committed = reader.steps()
        if dying not in committed and found:
            break
        say(f"(step {dying} was committed before the signal arrived; retrying at the next save)")
        die_at = dying + SAVE_EVERY
    say(f"The process is dead. It left bytes of step {dying} to which nothing refers:")
    show("\n".join(found))
    check(committed == list(range(SAVE_EVERY, dying, SAVE_EVERY)),
          "every step before the killed one is committed")
    say(f"Steps in the store: {committed}. Step {dying} is not in the store, not even partially: "
        "the atomic creation of one small file makes a step exist, and before it nothing refers to "
        "its bytes.")
    return committed[-1], found


def resumed(
    work: Path, store: Path, latest: int, left: list[str], expected: dict[int, str]
) -> None:
    headline(f"3. The same command again finds step {latest} and continues")
    show("""
        store.load({"model": model.state_dict()}, strict=False)  # directly into the weights' memory
        saved = store.read(["optimizer", "scheduler", "rng", "step"])
        optimizer.load_state_dict(saved["optimizer"])
        random.setstate(saved["rng"]["python"])                  # a tuple is loaded as a tuple
    """)
    status = run_program("train.py", steps=STEPS, store=store, save_every=SAVE_EVERY,
                         log=work / "resumed.jsonl")
    check(status == 0, "the resumed run ends normally")
    records = read_log(work / "resumed.jsonl")
    losses = losses_of(records)
    say("The losses, with all bits as hexadecimal floats:")
    rows = [f"{'step':>4}   {'never killed':29}   killed and resumed"]
    for step in (latest + 1, latest + 2, (latest + STEPS) // 2, STEPS):
        rows.append(f"{step:4}   " + "   ".join(
            f"{float.fromhex(loss):.6f} {loss:20}" for loss in (expected[step], losses[step])))
    show("\n".join(rows))
    check(sorted(losses) == list(range(latest + 1, STEPS + 1)),
          f"the resumed run performs steps {latest + 1} to {STEPS} and no others")
    different = [step for step in losses if losses[step] != expected[step]]
    check(not different, f"the losses are equal bit for bit (they differ at steps {different[:5]})")
    before = losses_of(read_log(work / "killed.jsonl"))
    check(all(before[step] == expected[step] for step in before),
          "saving in the background did not change the training")
    say(f"All {len(losses)} losses after the resume are bit for bit the same, and so are those of "
        "the killed run: weights, AdamW's moments, the schedule, and the random states of dropout "
        "and of the data were restored exactly.")
    check(not any((store / name).exists() for name in left),
          "the next open for writing removed the files that the killed process left")
    say("The files that the killed process had left were removed when the store was opened for "
        "writing.")
    # Time inside save_async and wait_staged; the rest of a save ran in the background.
    stalls = sum(record.get("save_call_s", 0) + record.get("staging_wait_s", 0)
                 for record in records)
    saves = sum("save_call_s" in record for record in records)
    say(f"A checkpoint is {mib(records[-1]['logical_bytes'])}. The training was blocked for "
        f"{1000 * stalls / saves:.1f} ms per save; the rest of each save ran in the background.")


def finetuned(store: Path) -> list[int]:
    """Returns the steps that the fine-tuning run saved."""
    headline("4. Fine-tuning on one license, which loads a part: the embedding and two of the\n"
             "   four layers, frozen, followed by a small new adapter that is trained")
    show(f"""
        wanted = ("embed.", "layers.")  # the new model has two layers
        frozen = {{k: v for k, v in model.state_dict().items() if k.startswith(wanted)}}
        store.load({{"model": frozen}}, step={STEPS}, strict=False)  # reads only these keys
        store.save({FINETUNE_FIRST + FINETUNE_SAVE_EVERY}, state)  # writes only new chunks
    """)
    keys, loaded, curve, saves = finetune(
        store, STEPS, FINETUNE_FIRST, FINETUNE_STEPS, FINETUNE_SAVE_EVERY
    )
    check(not loaded.missing, "the step has every key that the fine-tuning run requests")
    with cairn.open(store) as reader:
        stored = reader.keys(step=STEPS)
    # The tied head shares the embedding's bytes; they count once.
    whole = sum(info.nbytes for info in stored.values() if info.alias_of is None)
    check(loaded.bytes_read < whole / 2, "a partial load reads only a part")
    say(f"Read {mib(loaded.bytes_read)} for {keys} tensors; step {STEPS} holds {mib(whole)}.")
    window = 20
    first, last = sum(curve[:window]) / window, sum(curve[-window:]) / window
    check(last < first, "the fine-tuning run reduces the loss")
    say(f"Loss {first:.3f} -> {last:.3f} (means of {window} steps).")

    say(f"The state has {mib(saves[0].logical_bytes)}. These saves wrote:")
    rows = []
    for save in saves:
        check(save.written_bytes < save.logical_bytes / 2, "frozen tensors are not written again")
        rows.append(f"step {save.step}   {mib(save.written_bytes)}   "
                    f"{save.chunks_reused} of {save.chunks} chunks are references")
    show("\n".join(rows))
    say(f"Even the first save refers to bytes that step {STEPS} wrote. Each step still lists all "
        "of its chunks: steps do not depend on each other, and any step can be deleted anytime.")
    return [save.step for save in saves]


def followed(work: Path, store: Path) -> None:
    headline("5. A gentle fine-tune of the complete GPT publishes its bf16 weights after each\n"
             "   step. This process follows it, as an inference server does: it reads what changes")
    show("""
        store.save_async(step, {"weights": weights},
            tuning=cairn.SaveTuning(deltas=True))  # the fine-tune
        newest = store.wait(after=step)                            # this process
        store.pull(live, since=step, step=newest)
        store.tag(newest, "published")                             # at the end
    """)
    log = work / "publish.jsonl"
    publisher = start_program("publish.py", store=store, from_step=STEPS, steps=PUBLISH_STEPS,
                              first_step=PUBLISH_FIRST, log=log)
    last = PUBLISH_FIRST + PUBLISH_STEPS - 1
    pulls = {}
    with publisher, cairn.open(store) as reader:
        step = reader.wait(after=PUBLISH_FIRST - 1, timeout=120)
        check(step is not None, "the fine-tune publishes a step")
        live = reader.read(step=step)
        while step < last:
            newest = reader.wait(after=step, timeout=120)
            check(newest is not None, "the fine-tune publishes all steps")
            pulls[newest] = reader.pull(live, since=step, step=newest)
            step = newest
        check(publisher.wait() == 0, "the publishing run ends normally")
    with cairn.open(store, mode="a") as writer:
        writer.tag(last, "published")
        published = writer.read(step="published")
    same = all(torch.equal(live["weights"][name].view(torch.int16), value.view(torch.int16))
               for name, value in published["weights"].items())
    check(same, "the weights that were pulled are those that were published, bit for bit")
    rows = []
    for record in read_log(log):
        part = 100 * record["written_bytes"] / record["logical_bytes"]
        row = f"step {record['saved']}   wrote {mib(record['written_bytes']):>8}   {part:5.1f} %"
        if record["saved"] in pulls:
            row += f"   pulled {mib(pulls[record['saved']].bytes_read):>8}"
        rows.append(row)
    show("\n".join(rows))
    say("Few elements of bf16 weights change in a step, but in every page of 64 KiB. Only these "
        "elements are written and pulled. After four deltas, a chunk is written completely. Every "
        "step is complete, and what was pulled is what was published, bit for bit.")


def inspected(store: Path, saves: list[int]) -> None:
    headline("6. Inspecting the store from a shell: kv-dump never changes a store\n")
    name = str(store)
    kv_dump(name)
    kv_dump("steps", name)
    kv_dump("keys", f"{name}@{saves[-1]}", "model.layers.1", "!**.bias", "step")
    kv_dump("space", f"{name}@published", "--depth", "3")
    kv_dump("diff", f"{name}@{saves[0]}", f"{name}@{saves[-1]}", "model", expect=1)
    kv_dump("verify", name)


def main() -> None:
    began = time.perf_counter()
    work = Path(sys.argv[1])
    if work.exists():
        if not (work / MARKER).exists():
            sys.exit(f"demo: {work} exists and was not created by the demo; choose another folder")
        shutil.rmtree(work)
    work.mkdir(parents=True)
    (work / MARKER).touch()
    store = work / "store"

    say(
        f"Cairn's main job, in {work}/. The programs are tools/demo/train.py and finetune.py: "
        "plain torch on two cores, a GPT over bytes with 3.3 million parameters, AdamW, and as "
        "text the licenses that every Debian machine has.",
        indent=0,
    )
    expected = reference(work)
    latest, left = killed(work, store)
    resumed(work, store, latest, left, expected)
    saves = finetuned(store)
    followed(work, store)
    inspected(store, saves)
    say(f"Done in {time.perf_counter() - began:.0f} s; everything claimed above was checked. The "
        f"store stays in {store}: try", indent=0)
    show(f"""
        build/bin/kv-dump show {store}@{STEPS} model.norm.weight
        .venv/bin/python -c 'import cairn; help(cairn)'
    """)


if __name__ == "__main__":
    main()
