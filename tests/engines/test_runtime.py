"""Process settings."""

import os
import subprocess
import sys


def test_optimizer_works_without_importing_the_compiler_of_torch():
    code = (
        "import sys, torch; from troop.engines.runtime import defer_compiler_import; defer_compiler_import();"
        "x = torch.nn.Parameter(torch.ones(3)); optimizer = torch.optim.AdamW([x], lr=0.1, weight_decay=0.0);"
        "optimizer.zero_grad(); optimizer.load_state_dict(optimizer.state_dict());"
        "assert 'torch._dynamo' not in sys.modules;"
        "x.sum().backward(); optimizer.step(); assert torch.allclose(x, torch.full((3,), 0.9), atol=1e-4)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_default_threads_are_those_of_openmp(monkeypatch):
    from troop.engines.runtime import cores, default_threads

    for value, expected in {"3": 3, "0": cores(), "": cores(), "two": cores(), " 4 ,2": 4}.items():
        monkeypatch.setenv("OMP_NUM_THREADS", value)
        assert default_threads() == expected
    monkeypatch.delenv("OMP_NUM_THREADS")
    assert default_threads() == cores()


def test_importing_troop_lets_idle_threads_of_torch_sleep_early():
    code = "import os, sys, troop; assert 'torch' not in sys.modules; print(os.environ['GOMP_SPINCOUNT'])"
    own = {name: value for name, value in os.environ.items() if name != "GOMP_SPINCOUNT"}
    for environ, expected in ((own, "10000"), (own | {"GOMP_SPINCOUNT": "7"}, "7")):
        done = subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True, check=True)
        assert done.stdout.decode().strip() == expected
