"""Programs of `overhead --trainer`: one for each library, which trains in turns with taskd and without."""
