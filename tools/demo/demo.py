"""Demonstrates the main job step by step: what happens, why, and the code that does it.

Every printed number is measured in this run, and every claim is checked: if one does not hold, the
demo prints it and exits with status 1. Started by tools/demo.sh.
"""

import json
import multiprocessing
import shlex
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import torch

import cairn
import finetune
import train

KV_DUMP = Path(__file__).resolve().parents[2] / "build" / "bin" / "kv-dump"
STEPS, SAVE_EVERY, DIE_AT = 120, 20, 80
FINETUNE_FIRST, FINETUNE_STEPS, FINETUNE_SAVE_EVERY = 1000, 90, 30
PUBLISHED = range(2000, 2007)
MARKER = ".cairn-demo"  # marks a folder that the demo may delete
SPAWN = multiprocessing.get_context("spawn")  # new interpreters


def say(text: str, indent: str = "   ") -> None:
    """Prints one paragraph, wrapped."""
    print(textwrap.fill(text, 96, initial_indent=indent, subsequent_indent=indent,
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


def kv_dump(*arguments: str, expect: int = 0) -> None:
    """Runs kv-dump and prints its output; the demo fails if the exit status is not `expect`."""
    command = shlex.join(("build/bin/kv-dump", *arguments))
    done = subprocess.run([KV_DUMP, *arguments], capture_output=True, text=True)
    check(done.returncode == expect,
          f"{command} exits with {expect} (it was {done.returncode}: {done.stderr.strip()})")
    print(f"   $ {command}\n{textwrap.indent(done.stdout.rstrip(), '   ')}\n", flush=True)


def run_training(log: Path, *arguments: object, status: int = 0) -> list[dict]:
    """Calls `train` in a new process, which must end with this status (-SIGKILL: killed), and
    returns the records of the log."""
    process = SPAWN.Process(target=train.train, args=(STEPS, log, *arguments))
    process.start()
    process.join()
    check(process.exitcode == status,
          f"the training ends with status {status} (it was {process.exitcode})")
    # The last line may be incomplete if the process died.
    return [json.loads(line) for line in log.read_text().split("\n")[:-1]]


def losses_of(records: list[dict]) -> dict[int, str]:
    """The loss of every step, as hexadecimal floats."""
    return {record["step"]: record["loss"] for record in records if "loss" in record}


def reference(work: Path) -> dict[int, str]:
    headline(f"1. Reference run: {STEPS} steps, no checkpoints, never interrupted")
    began = time.perf_counter()
    losses = losses_of(run_training(work / "reference.jsonl"))
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


def killed(work: Path, store: Path, expected: dict[int, str]) -> tuple[int, list[str]]:
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
        records = run_training(work / "killed.jsonl", store, SAVE_EVERY, die_at,
                               status=-signal.SIGKILL)
        dying = max(record.get("will_die_at", 0) for record in records)
        left = leftovers(store)
        with cairn.open(store) as reader:
            committed = reader.steps()
        if dying not in committed and left:
            break
        say(f"(step {dying} was committed before the signal arrived; retrying at the next save)")
        die_at = dying + SAVE_EVERY
    say(f"The process is dead. It left bytes of step {dying} to which nothing refers:")
    show("\n".join(left))
    check(committed == list(range(SAVE_EVERY, dying, SAVE_EVERY)),
          "every step before the killed one is committed")
    say(f"Steps in the store: {committed}. Step {dying} is not in the store, not even partially: "
        "the atomic creation of one small file makes a step exist, and before it nothing refers to "
        "its bytes.")
    check(losses_of(records).items() <= expected.items(),
          "saving in the background did not change the training")
    return committed[-1], left


def resumed(
    work: Path, store: Path, latest: int, left: list[str], expected: dict[int, str]
) -> None:
    headline(f"3. The same run again finds step {latest} and continues")
    show("""
        store.load({"model": model.state_dict()}, strict=False)  # directly into the weights' memory
        saved = store.read(["optimizer", "scheduler", "rng", "step"])
        optimizer.load_state_dict(saved["optimizer"])
        random.setstate(saved["rng"]["python"])                  # a tuple is loaded as a tuple
    """)
    records = run_training(work / "resumed.jsonl", store, SAVE_EVERY)
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
    keys, loaded, curve, saves = finetune.train_adapter(
        store, STEPS, FINETUNE_FIRST, FINETUNE_STEPS, FINETUNE_SAVE_EVERY)
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
    check(all(save.written_bytes < save.logical_bytes / 2 for save in saves),
          "frozen tensors are not written again")
    show("\n".join(
        f"step {save.step}   {mib(save.written_bytes)}   "
        f"{save.chunks_reused} of {save.chunks} chunks are references" for save in saves))
    say(f"Even the first save refers to bytes that step {STEPS} wrote. Each step still lists all "
        "of its chunks: steps do not depend on each other, and any step can be deleted anytime.")
    return [save.step for save in saves]


def followed(store: Path) -> None:
    headline("5. A gentle fine-tune of the complete GPT publishes its bf16 weights after each\n"
             "   step. This process follows it, as an inference server does: it reads what changes")
    show("""
        store.save_async(step, {"weights": weights},
            tuning=cairn.SaveTuning(deltas=True))  # the fine-tune
        newest = store.wait(after=step)                            # this process
        store.pull(live, since=step, step=newest)
        store.tag(newest, "published")                             # at the end
    """)
    pulls = {}
    with ProcessPoolExecutor(1, SPAWN) as publisher, cairn.open(store) as reader:
        publishing = publisher.submit(finetune.publish, store, STEPS, PUBLISHED)
        step = reader.wait(after=PUBLISHED[0] - 1, timeout=120)
        check(step is not None, "the fine-tune publishes a step")
        live = reader.read(step=step)
        while step < PUBLISHED[-1]:
            newest = reader.wait(after=step, timeout=120)
            check(newest is not None, "the fine-tune publishes all steps")
            pulls[newest] = reader.pull(live, since=step, step=newest)
            step = newest
        saves = publishing.result()
    with cairn.open(store, mode="a") as writer:
        writer.tag(PUBLISHED[-1], "published")
        published = writer.read(step="published")
    same = all(torch.equal(live["weights"][name].view(torch.int16), value.view(torch.int16))
               for name, value in published["weights"].items())
    check(same, "the weights that were pulled are those that were published, bit for bit")
    rows = []
    for step, nbytes, written in saves:
        row = f"step {step}   wrote {mib(written):>8}   {100 * written / nbytes:5.1f} %"
        rows.append(row + (f"   pulled {mib(pulls[step].bytes_read):>8}" if step in pulls else ""))
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

    say(f"Cairn's main job, in {work}/. The code is in tools/demo/train.py and finetune.py: plain "
        "torch on two cores, a GPT over bytes with 3.3 million parameters, AdamW, and as text the "
        "licenses that every Debian machine has.", indent="")
    expected = reference(work)
    latest, left = killed(work, store, expected)
    resumed(work, store, latest, left, expected)
    saves = finetuned(store)
    followed(store)
    inspected(store, saves)
    say(f"Done in {time.perf_counter() - began:.0f} s; everything claimed above was checked. The "
        f"store stays in {store}: try", indent="")
    show(f"""
        build/bin/kv-dump show {store}@{STEPS} model.norm.weight
        .venv/bin/python -c 'import cairn; help(cairn)'
    """)


if __name__ == "__main__":
    main()
