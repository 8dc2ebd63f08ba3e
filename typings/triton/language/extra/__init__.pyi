from triton.language.extra import libdevice as libdevice
