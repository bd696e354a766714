"""`Wandb`: scalars of each event, and an artifact that refers to each saved step."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cairn.metrics._measures import LastStep, measures, series

if TYPE_CHECKING:
    import wandb

    from cairn.reports import StoreEvent


class Wandb:
    """An observer that logs to a run of wandb.

    Scalars such as ``cairn/save/written_bytes`` have the training step ``cairn/step`` as their x
    axis. They are logged with ``commit=False``, so that they are part of the row that the training
    logs next and do not change the numbers of its rows. A copy to a mirror is part of the row in
    which it ended, and ``cairn/mirror/step`` is the step that was copied.

    Each saved step becomes a version of the artifact ``checkpoint-RUN`` with the aliases
    ``step-N``, ``latest`` and the tags of the step. The version contains a reference,
    ``cairn+file:///PATH@STEP`` or ``cairn+s3://BUCKET/PREFIX@STEP``, and nothing is uploaded or
    read to make it. Its metadata has the address that ``cairn.open`` and ``kv-dump`` understand.
    ``artifact.download()`` cannot resolve the reference.

    Threads: any.

    Args:
        run: the result of ``wandb.init``, which the caller finishes after closing the store.
        artifacts: ``False`` logs only scalars.
    """

    def __init__(self, run: wandb.Run, *, artifacts: bool = True) -> None:
        self._run = run
        self._artifacts = artifacts
        self._last = LastStep()
        run.define_metric("cairn/step", hidden=True)
        run.define_metric("cairn/*", step_metric="cairn/step")

    def __call__(self, event: StoreEvent) -> None:
        values = {f"cairn/{series(event)}/{name}": one for name, one in measures(event).items()}
        if event.kind == "mirror" and event.step is not None:
            values[f"cairn/{series(event)}/step"] = event.step
        self._run.log({**values, "cairn/step": self._last.of_call(event)}, commit=False)
        if self._artifacts and event.kind == "save" and event.error is None:
            self._log_artifact(event)

    def _log_artifact(self, event: StoreEvent) -> None:
        import wandb

        address = f"{event.address}@{event.step}"
        metadata = {"address": address, "step": event.step, **measures(event)}
        aliases = ["latest", f"step-{event.step}"]
        if event.info is not None:
            metadata["metrics"] = event.info.metrics
            aliases += event.info.tags
        artifact = wandb.Artifact(f"checkpoint-{self._run.id}", "checkpoint", metadata=metadata)
        # wandb has handlers of file: and s3: that look for an object with this name. It takes the
        # URI of another scheme as it is, and its digest is that of the URI, which therefore differs
        # for a step that replaces one with the same number.
        place = f"file://{event.address}" if event.address.startswith("/") else event.address
        uri = f"cairn+{place}@{event.step}#{event.unix_ns}"
        artifact.add_reference(uri, name="step", checksum=False)
        self._run.log_artifact(artifact, aliases=aliases)
