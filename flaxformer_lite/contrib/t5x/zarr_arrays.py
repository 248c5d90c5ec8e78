"""Opens arrays in zarr for the readers of checkpoints that tensorstore wrote."""

from flaxformer_lite.contrib.t5x.arranged_tensors import Readable, check_shape
from flaxformer_lite.files.read import Json, quote_name
from flaxformer_lite.pretrained.safetensors import WeightsError

DTYPES = ("float32", "bfloat16", "float16")


def open_zarr(kvstore: Json, where: str, driver: str = "zarr") -> Readable:
    """Opens an array, which is read later.

    Args:
      kvstore: tensorstore's spec of its folder.
      where: the array, for messages.
      driver: "zarr" or "zarr3".

    Raises:
      WeightsError: it is missing, damaged or of integers.
    """
    import tensorstore

    spec = {
        "driver": driver,
        "kvstore": kvstore,
        # Zeros in place of a chunk that was not copied would be a silent error.
        "fill_missing_data_reads": False,
    }
    try:
        array = tensorstore.open(spec, open=True, read=True).result()
    except ValueError as error:
        why = quote_name(str(error).partition(" [")[0])
        raise WeightsError(
            f"{where} is missing or damaged ({why}); fetch the whole folder again."
        ) from None
    if array.dtype.name not in DTYPES:
        raise WeightsError(
            f"{where} has dtype {array.dtype.name}; must be one of {', '.join(DTYPES)}: quantized"
            " weights are not read."
        )
    check_shape(where, array)
    return array
