"""Edge and cloud: a slow device near the data infers, a fast one behind a link of 2 Mbit/s trains.

Two network namespaces stand for the two hosts: it needs root and iproute2, and says so in one line without.
"""

import subprocess
import sys
import time
from multiprocessing.connection import Client, Listener

import numpy as np
from netns import fleet_of_namespaces

import hetero

PORT, KEY, CLASSES, PIXELS = 5077, b"edge and cloud", 10, 4096


def seen(count, seed):
    """Return noisy pictures of ten shapes, a byte a pixel, and which shape each is."""
    shapes, rng = np.random.default_rng(0).integers(0, 255, (CLASSES, PIXELS)), np.random.default_rng(seed)
    labels = rng.integers(CLASSES, size=count)
    return np.clip(shapes[labels] + rng.normal(0, 500, (count, PIXELS)), 0, 255).astype(np.uint8), labels


def infer(weights, pictures):
    """Light: one product."""
    return (pictures / 255.0 - 0.5) @ weights


def train(pictures, labels, rounds=150):
    """Heavy: softmax regression over all pictures."""
    weights, wanted = np.zeros((PIXELS, CLASSES)), np.eye(CLASSES)[labels]
    for _ in range(rounds):
        scores = np.exp(np.clip(infer(weights, pictures), -30, 30))
        error = scores / scores.sum(axis=1, keepdims=True) - wanted
        weights -= 0.05 * (pictures / 255.0 - 0.5).T @ error / len(labels)
    return weights


def cloud(address):
    """Train with what comes, and infer with what was learned, for whoever asks."""
    with hetero.Context(devices="1xcpu") as ctx, Listener((address, PORT), authkey=KEY) as door:
        print("up", flush=True)
        with door.accept() as near:
            near.send(weights := ctx.run(train, *near.recv()).astype(np.float16))
            while (picture := near.recv()) is not None:
                near.send(ctx.run(infer, weights, picture))


def timed(function, *args):
    """Return the result and the milliseconds."""
    begin = time.perf_counter()
    return function(*args), 1e3 * (time.perf_counter() - begin)


def edge(address):
    """Infer here with what was learned there; compare with sending every picture."""

    def asked(words):
        far.send(words)
        return far.recv()

    with hetero.Context(devices="1xcpu*0.25") as ctx, Client((address, PORT), authkey=KEY) as far:
        pictures, labels = seen(200, seed=2)
        weights, train_ms = timed(asked, seen(200, seed=1))
        print(f"trained in the cloud in {train_ms:.0f} ms, the link included")
        for name, used in (("before", np.zeros((PIXELS, CLASSES))), ("after", weights)):
            right = ctx.run(infer, used, pictures).argmax(axis=1) == labels
            print(f"accuracy at the edge {name}: {right.mean():.0%}")
        here = np.median([timed(ctx.run, infer, weights, each)[1] for each in pictures[:60, None]])
        there = np.median([timed(asked, each)[1] for each in pictures[:60, None]])
        print(f"latency of one picture: {here:.1f} ms at the edge, {there:.1f} ms through the cloud")
        far.send(None)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        sys.exit({"cloud": cloud, "edge": edge}[sys.argv[1]](sys.argv[2]))
    try:
        with fleet_of_namespaces([2e6, 1e9]) as fleet:
            address = fleet.hosts[1].address
            far = fleet.popen(1, [sys.executable, __file__, "cloud", address], stdout=subprocess.PIPE)
            far.stdout.readline()
            fleet.popen(0, [sys.executable, __file__, "edge", address]).wait()
            far.wait(60)
    except hetero.errors.HeteroError as error:
        print(f"edge and cloud cannot be shown here: {error}")
