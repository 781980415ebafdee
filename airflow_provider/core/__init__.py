"""Pure rules: no I/O, no clock, no Airflow, Ray or boto3. Facts and the time come in, values with reasons go out."""
