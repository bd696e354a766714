# g++ of Debian 12, which links for the glibc of tools/wheel/link_stubs.sh. Read from the environment,
# because CMake reads this file again for each of its checks:
#   CAIRN_WHEEL_ARCH    x86_64 or aarch64
#   CAIRN_LINK_STUBS    the folder of link_stubs.sh
set(arch $ENV{CAIRN_WHEEL_ARCH})
set(stubs $ENV{CAIRN_LINK_STUBS})
if(NOT arch STREQUAL CMAKE_HOST_SYSTEM_PROCESSOR)
  set(CMAKE_SYSTEM_NAME Linux)
  set(CMAKE_SYSTEM_PROCESSOR ${arch})
  set(CMAKE_LIBRARY_PATH ${stubs})  # librt, for the runtime of CUDA
  set(Python_INCLUDE_DIR /usr/include/python3.11)  # tools/build-wheel.sh states why
endif()
set(CMAKE_C_COMPILER ${arch}-linux-gnu-gcc)
set(CMAKE_CXX_COMPILER ${arch}-linux-gnu-g++)
# The runtime library of g++ 12 is newer than that of old systems, and so is a part of each file. The
# stubs lack what only glibc itself uses (--allow-shlib-undefined).
set(link "-B${stubs} -L${stubs} -static-libstdc++ -Wl,--gc-sections,--as-needed,--exclude-libs,ALL")
string(APPEND link " -Wl,--allow-shlib-undefined")
foreach(kind EXE SHARED MODULE)
  set(CMAKE_${kind}_LINKER_FLAGS_INIT "${link}")
endforeach()
