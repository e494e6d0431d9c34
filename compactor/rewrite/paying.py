"""Row groups that are paid for from the attempt's allowance before the kernel reads them."""

from common.parquet.location import Location
from common.rows.partitions import Fill
from compactor.rewrite.allowance import Allowance
from compactor.rewrite.kernel.bounds import Group
from compactor.rewrite.kernel.reading import Held, Layout, Reader
from compactor.rewrite.stored import leaves_of, stored_bytes


class PayingReader(Reader):
    """Pays for each row group before it is read, or at once after the footer came with it."""

    def __init__(
        self,
        allowance: Allowance,
        location: Location,
        path: str,
        layout: Layout,
        fill: Fill,
        *,
        whole: bool = False,
    ) -> None:
        """Look at the file's columns; see `Reader`.

        Args:
            allowance: Of the attempt.
            location: Of the file.
            path: Relative to it.
            layout: How its rows are wanted.
            fill: What its folders say.
            whole: Pay for all columns: the row groups are copied afterwards.
        """
        super().__init__(location, path, layout, fill)
        self._allowance = allowance
        self._paid_columns = None if whole else tuple(layout.schema.names)
        self._leaves: list[int] | None = None

    def read(self, group: Group, *, by_key: bool = True) -> Held:
        """Return the rows of a row group, when the grant has made up for them."""
        known = self._metadata is not None
        if known:
            self._pay(group)
        held = super().read(group, by_key=by_key)
        if not known:
            self._pay(group)
        return held

    def _pay(self, group: Group) -> None:
        if group.skip:
            return  # Its first piece has paid for the whole.
        assert self._metadata is not None
        if self._leaves is None:
            self._leaves = leaves_of(self._metadata, self._paid_columns)
        self._allowance.pay(stored_bytes(self._metadata, group.number, self._leaves))
