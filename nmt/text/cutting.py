"""Former name of `nmt.text.splitting`."""

from nmt.text.splitting import Part as Part
