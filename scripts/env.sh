# For bash and zsh: `. scripts/env.sh` puts .venv first on PATH and points Spark at its Java and Python.
_logboom_venv=$(cd "$(dirname "${BASH_SOURCE:-$0}")/.." && pwd)/.venv
[ -x "$_logboom_venv/bin/logboom" ] ||
  echo "env.sh: no logboom in $_logboom_venv: run \`make setup\`, and source this file from bash or zsh" >&2
export PATH="$_logboom_venv/bin:$PATH" PYSPARK_PYTHON="$_logboom_venv/bin/python"
export SPARK_LOCAL_IP=${SPARK_LOCAL_IP:-127.0.0.1}
if [ -x "$_logboom_venv/java-home/bin/java" ]; then export JAVA_HOME="$_logboom_venv/java-home"; fi
unset _logboom_venv
