# Compiler, warnings and the libraries every folder may rely on.
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "Build type" FORCE)
endif()

find_program(WEFT_CCACHE ccache)
if(WEFT_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  # The sloppiness is what lets ccache reuse objects built with a precompiled header, the base folder what lets every clone reuse them.
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CMAKE_COMMAND} -E env
      CCACHE_SLOPPINESS=pch_defines,time_macros,include_file_mtime,include_file_ctime CCACHE_BASEDIR=${PROJECT_SOURCE_DIR} ${WEFT_CCACHE})
endif()

# A libtorch file takes 1.3 GB and 20 s to compile: at most two at once, whatever the machine.
set_property(GLOBAL PROPERTY JOB_POOLS torch_pool=2)

add_library(weft_warnings INTERFACE)
# -Wrestrict misfires on std::string concatenation in g++ 12 (PR 105651).
target_compile_options(weft_warnings INTERFACE -Wall -Wextra -Wno-missing-field-initializers
                                               $<$<CXX_COMPILER_ID:GNU>:-Wno-restrict> $<$<BOOL:${WEFT_WERROR}>:-Werror>)
find_package(Threads REQUIRED)

if(WEFT_TORCH)
  # The wheel's package warns that it has no kineto (a profiler), which nothing here needs.
  set(CMAKE_MESSAGE_LOG_LEVEL ERROR)
  find_package(Torch REQUIRED)
  unset(CMAKE_MESSAGE_LOG_LEVEL)
endif()
if(WEFT_TESTS)
  enable_testing()
  find_package(GTest REQUIRED)
  include(GoogleTest)
endif()
if(WEFT_BENCHMARKS)
  find_package(benchmark QUIET)
endif()
