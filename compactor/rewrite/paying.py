"""Row groups that are paid for from the attempt's allowance before the kernel reads them."""

from common.parquet.location import Location
from common.rows.partitions import Fill
from compactor.rewrite.allowance import Allowance
from compactor.rewrite.kernel.bounds import Group
from compactor.rewrite.kernel.layout import Held, Layout
from compactor.rewrite.kernel.reading import Reader
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
        copied: bool = False,
    ) -> None:
        """Look at the file's columns; see `Reader`.

        Args:
            allowance: Of the attempt.
            location: Of the file.
            path: Relative to it.
            layout: How its rows are wanted.
            fill: What its folders say.
            copied: Row groups are copied afterwards: their keys are read without being paid
                for, and `pay` pays for all columns.
        """
        super().__init__(location, path, layout, fill)
        self._allowance = allowance
        self._copied = copied
        self._leaves: list[int] | None = None

    def read(self, group: Group, *, by_key: bool = True) -> Held:
        """Return the rows of a row group, when the grant has made up for them."""
        if self._copied or group.skip:
            return super().read(group, by_key=by_key)  # Its first piece has paid for the whole.
        known = self._metadata is not None
        if known:
            self.pay(group)
        held = super().read(group, by_key=by_key)
        if not known:
            self.pay(group)
        return held

    def pay(self, group: Group) -> None:
        """Pay for a row group of a file whose footer is known."""
        assert self._metadata is not None
        if self._leaves is None:
            columns = None if self._copied else tuple(self.layout.schema.names)
            self._leaves = leaves_of(self._metadata, columns)
        self._allowance.pay(stored_bytes(self._metadata, group.number, self._leaves))
