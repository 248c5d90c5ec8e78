SHARED = ()
