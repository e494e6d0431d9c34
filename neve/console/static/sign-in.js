"use strict";
// The code of a link stands in the fragment, which browsers send to nobody. It is used at once, and
// taken out of the address and the history.
{
  const code = location.hash.slice(1);
  if (code) {
    history.replaceState(null, "", location.pathname + location.search);
    const form = document.getElementById("sign-in");
    document.getElementById("secret").value = decodeURIComponent(code);
    form.requestSubmit();
  }
}
