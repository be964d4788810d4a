"""toppgate: row-by-row evidence on a change to vLLM's split top-p kernel.

    params -> sources -> capture -> execute -> oracle -> gate -> seal -> verify

``docs/contract.md`` says what the program means, ``docs/architecture.md`` which module does what.
"""

__version__ = "0.1.0"
