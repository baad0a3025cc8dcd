"""The transaction coordinator: transactional ids, their states in `__transaction_state`, and the markers that end transactions."""

from .coordinator import TransactionCoordinator as TransactionCoordinator
from .verification import Operation as Operation
from .verification import operation as operation
