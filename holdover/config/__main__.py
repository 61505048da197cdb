"""`python -m holdover.config` prints docs/configuration.md."""

import sys

from holdover.config.document import configuration_page

sys.stdout.write(configuration_page())
