"""Run a notebook as a SparkApplication: in the workbench's runner, with the Spark of spark-submit.

spark-submit runs a file, and the driver's exit code is the application's.
"""

import sys

from workbench.commands.cli import main

sys.exit(main(["run", *sys.argv[1:]]))
