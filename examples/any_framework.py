"""Arrays in, arrays out: train with whatever computes your gradients.

`Shared` keeps a dict of arrays (a model's parameters) in one table: `pull` brings the newest
values, `push` sends gradients of the same names. It is all that a framework needs. The program
trains a small model in plain numpy, and once more in torch if that is installed.
"""

import numpy as np

import aiops.blocking
from aiops.optim import Adam

STEPS, WORKERS = 300, 2


class Shared:
    """A dict of arrays, shared by all workers in one flat table.

    Parameters
    ----------
    worker
        A worker of `aiops.blocking`.
    arrays
        Initial values by name; those of the first worker to come win.
    """

    def __init__(self, worker, arrays, optimizer):
        self._shapes = {name: np.shape(array) for name, array in arrays.items()}
        start = self._flat(arrays)
        self._table = worker.table("model", start.shape, init=start, optimizer=optimizer)

    def _flat(self, arrays):
        parts = [np.asarray(arrays[name], np.float32).reshape(-1) for name in self._shapes]
        return np.concatenate(parts)

    def pull(self):
        """Return the newest values, by name."""
        flat, at, arrays = self._table.pull(), 0, {}
        for name, shape in self._shapes.items():
            size = int(np.prod(shape))
            arrays[name] = flat[at : at + size].reshape(shape)
            at += size
        return arrays

    def push(self, gradients):
        """Send a gradient for every name."""
        self._table.push(self._flat(gradients))


def make_rows(rank):
    """Make a worker's rows of y = sin(x)."""
    x = np.random.default_rng(rank).uniform(-3, 3, (256, 1)).astype(np.float32)
    return x, np.sin(x)


def start_values():
    random = np.random.default_rng(0)
    shapes = {"w1": (1, 16), "b1": (16,), "w2": (16, 1), "b2": (1,)}
    return {name: random.normal(0, 0.5, shape) for name, shape in shapes.items()}


def train_numpy(worker):
    x, y = make_rows(worker.rank)
    model = Shared(worker, start_values(), Adam(lr=0.02))
    for _ in worker.steps(STEPS):
        p = model.pull()
        hidden = np.tanh(x @ p["w1"] + p["b1"])
        error = 2 * (hidden @ p["w2"] + p["b2"] - y) / len(x)
        back = error @ p["w2"].T * (1 - hidden**2)
        model.push(
            {"w1": x.T @ back, "b1": back.sum(0), "w2": hidden.T @ error, "b2": error.sum(0)}
        )
    p = model.pull()
    return float(np.mean((np.tanh(x @ p["w1"] + p["b1"]) @ p["w2"] + p["b2"] - y) ** 2))


def train_torch(worker):
    import torch

    x, y = map(torch.from_numpy, make_rows(worker.rank))
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(1, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
    model = Shared(worker, {k: v.numpy() for k, v in net.state_dict().items()}, Adam(lr=0.02))
    for _ in worker.steps(STEPS):
        net.load_state_dict({k: torch.from_numpy(v) for k, v in model.pull().items()})
        net.zero_grad()
        torch.nn.functional.mse_loss(net(x), y).backward()
        model.push({name: parameter.grad.numpy() for name, parameter in net.named_parameters()})
    net.load_state_dict({k: torch.from_numpy(v) for k, v in model.pull().items()})
    return float(torch.nn.functional.mse_loss(net(x), y))


def run(name, train):
    with aiops.blocking.LocalCluster(servers=2) as cluster:
        losses = cluster.run(train, workers=WORKERS)
    print(f"{name}: loss {np.mean(losses):.4f}")


if __name__ == "__main__":
    run("numpy", train_numpy)
    try:
        import torch  # noqa: F401  # only to see whether it is there
    except ImportError:
        print("torch: not installed")
    else:
        run("torch", train_torch)
