"""What Python runs first in Spark's workers, which find this folder on their path.

Spark puts pyspark.zip before the installed package that it is a part of: each worker would compile the modules that it imports, which
takes three times as long as it takes to import them.
"""

import sys

sys.path[:] = [place for place in sys.path if not place.endswith("pyspark.zip")]
