"""The client of the parameter servers that `weft run --servers N` runs beside the ranks."""

from datetime import timedelta

import torch

from . import _C


class ParameterServerClient:
    """Pushes gradients to the servers of this job, and pulls values from them:

        client = weft_torch.ParameterServerClient()        # under weft run --servers N
        client.define(dict(model.named_parameters()), rule="sgd", lr=0.1, staleness=2)
        client.join()
        for inputs in batches:
            client.pull(dict(model.named_parameters()))    # into the parameters
            model(inputs).square().mean().backward()
            client.push({name: p.grad for name, p in model.named_parameters()})
        client.leave()

    `worker`: number of this worker; None: its rank. `timeout`: of each call. Values are float32 on
    the servers; tensors may have another type or device. Errors are `weft_torch.Error`."""

    def __init__(self, worker: int | None = None, timeout: timedelta = timedelta(seconds=30)):
        self._client = _C.ParameterServerClient(worker, timeout)

    def define(
        self,
        tensors: dict[str, torch.Tensor],
        *,
        rule: str = "sgd",
        lr: float = 0.1,
        staleness: int = 0,
        push_codec: str = "none",
        pull_codec: str = "none"
    ) -> None:
        """Creates the tensors. The values of the first client count. All clients define the same
        tensors in the same order, with the same options. `rule`: sgd, rmsprop, adagrad, adam, lion,
        or none (pushes are added). `staleness`: 0 sync, -1 async, else the bound of SSP."""
        self._client.define(list(tensors.items()), rule, lr, staleness, push_codec, pull_codec)

    def join(self) -> None:
        """This worker counts from now on."""
        self._client.join()

    def leave(self) -> None:
        """The others do not wait for this worker any more."""
        self._client.leave()

    def push(self, gradients: dict[str, torch.Tensor], lr: float = -1) -> None:
        """Pushes gradients, or deltas, and waits until the servers have them. `lr`: learning rate
        of this update; below 0: that of the rule."""
        self._client.push(list(gradients.items()), lr)

    def pull(self, into: dict[str, torch.Tensor]) -> None:
        """Copies the values into these tensors. With a bound of the staleness, it waits until the
        slowest worker is near enough."""
        self._client.pull(list(into.items()))

    @property
    def workers(self) -> int:
        """Number of workers that count."""
        return self._client.workers()
