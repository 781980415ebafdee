"""RayTrainOperator and the steps of one try behind it."""
