"""Process settings."""

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
