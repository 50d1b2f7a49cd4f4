# Compiler options, warnings, and the libraries that every folder may use.
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
if(PROJECT_IS_TOP_LEVEL)
  # Loops over memory are in weft/kernels, which adds -O3.
  set(CMAKE_CXX_FLAGS_RELEASE "-O2 -DNDEBUG")
endif()
if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "Build type" FORCE)
endif()

find_program(WEFT_CCACHE ccache)
if(WEFT_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  # With CCACHE_SLOPPINESS, ccache can reuse objects that were built with a precompiled header. With
  # CCACHE_BASEDIR, all clones share these objects.
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CMAKE_COMMAND} -E env
      CCACHE_SLOPPINESS=pch_defines,time_macros,include_file_mtime,include_file_ctime
      CCACHE_BASEDIR=${PROJECT_SOURCE_DIR} ${WEFT_CCACHE})
endif()

# A file that includes libtorch needs up to 1.5 GB of memory to compile. The pool limits the number
# of such compilers by the memory of the machine.
cmake_host_system_information(RESULT memory_mib QUERY TOTAL_PHYSICAL_MEMORY)
math(EXPR torch_jobs "${memory_mib} / 1536")
if(torch_jobs LESS 1)
  set(torch_jobs 1)
endif()
set_property(GLOBAL PROPERTY JOB_POOLS torch_pool=${torch_jobs})

# mold links a test in a tenth of the time of GNU ld.
find_program(WEFT_MOLD mold)
mark_as_advanced(WEFT_MOLD)
if(WEFT_MOLD AND NOT CMAKE_CROSSCOMPILING AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND
  CMAKE_CXX_COMPILER_VERSION VERSION_GREATER_EQUAL 12.1)
  add_link_options(-fuse-ld=mold)
endif()

add_library(weft_warnings INTERFACE)
# -Wno-restrict: g++ 12 warns wrongly about the concatenation of std::string (PR 105651).
# -Wno-subobject-linkage: a unity build includes source files, which the warning takes for headers.
target_compile_options(weft_warnings INTERFACE -Wall -Wextra -Wno-missing-field-initializers
  $<$<CXX_COMPILER_ID:GNU>:-Wno-restrict>
  $<$<AND:$<BOOL:${WEFT_UNITY}>,$<CXX_COMPILER_ID:GNU>>:-Wno-subobject-linkage>
  $<$<BOOL:${WEFT_WERROR}>:-Werror>)
find_package(Threads REQUIRED)
find_package(nlohmann_json 3.10 REQUIRED)  # headers only; an installed weft does not need it

if(WEFT_TORCH)
  find_package(CLI11 2.1 REQUIRED)
  include(WeftTorch)
  if(NOT WEFT_TORCH_ROOT)
    weft_find_torch(WEFT_TORCH_ROOT)
    set(WEFT_TORCH_ROOT ${WEFT_TORCH_ROOT}
      CACHE PATH "Folder of libtorch, with its lib and include")
  endif()
  weft_torch_version(${WEFT_TORCH_ROOT} WEFT_TORCH_VERSION)
  message(STATUS "torch ${WEFT_TORCH_VERSION} in ${WEFT_TORCH_ROOT}")
  weft_import_torch(${WEFT_TORCH_ROOT})
endif()
if(WEFT_TESTS)
  enable_testing()
  find_package(GTest 1.11 REQUIRED)
  include(GoogleTest)
endif()
if(WEFT_BENCHMARKS)
  find_package(benchmark 1.6 QUIET)
endif()
