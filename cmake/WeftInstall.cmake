# What `cmake --install` installs beside the libraries of the modules (WeftModule): the public
# headers, the target weft::weft, the package files and the command.
include(CMakePackageConfigHelpers)

# The public headers, made of the tree's: cmake/public_headers.txt says of which.
find_package(Python3 REQUIRED COMPONENTS Interpreter)
set(list ${CMAKE_CURRENT_LIST_DIR}/public_headers.txt)
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${list})
file(READ ${list} text)
string(REGEX REPLACE "(^|\n)(#|//)[^\n]*" "" text "${text}")
string(REGEX MATCHALL "weft/[a-z0-9_]+/[a-z0-9_/]+[.]h" tree_headers "${text}")
list(TRANSFORM tree_headers PREPEND ${PROJECT_SOURCE_DIR}/)
set(named "")
if(NOT WEFT_TORCH)
  set(named weft/schedule.h)
endif()
set(script ${PROJECT_SOURCE_DIR}/tools/make_public_headers)
add_custom_command(OUTPUT ${CMAKE_BINARY_DIR}/include/made
                   COMMAND ${Python3_EXECUTABLE} ${script} ${PROJECT_SOURCE_DIR}
                   ${CMAKE_BINARY_DIR}/include ${named}
                   COMMAND ${CMAKE_COMMAND} -E touch ${CMAKE_BINARY_DIR}/include/made
                   DEPENDS ${script} ${list} ${tree_headers} COMMENT "Public headers" VERBATIM)
add_custom_target(weft_public_headers ALL DEPENDS ${CMAKE_BINARY_DIR}/include/made)
if(TARGET weft)
  # an install after bin/weft has built the command alone
  add_dependencies(weft weft_public_headers)
endif()
install(DIRECTORY ${CMAKE_BINARY_DIR}/include/weft DESTINATION include COMPONENT devel
  FILES_MATCHING PATTERN "*.h")

install(TARGETS weft_umbrella EXPORT weftTargets)

set(package_dir lib/cmake/weft)
get_property(WEFT_TORCH_MODULES GLOBAL PROPERTY WEFT_TORCH_MODULES)
string(REGEX MATCH "^[0-9]+[.][0-9]+" WEFT_TORCH_MINOR "${WEFT_TORCH_VERSION}")
configure_package_config_file(${CMAKE_CURRENT_LIST_DIR}/weftConfig.cmake.in
                              ${CMAKE_BINARY_DIR}/weftConfig.cmake
                              INSTALL_DESTINATION ${package_dir} NO_SET_AND_CHECK_MACRO)
write_basic_package_version_file(${CMAKE_BINARY_DIR}/weftConfigVersion.cmake
  COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_BINARY_DIR}/weftConfig.cmake ${CMAKE_BINARY_DIR}/weftConfigVersion.cmake
        ${CMAKE_CURRENT_LIST_DIR}/WeftTorch.cmake
        DESTINATION ${package_dir} COMPONENT devel)
install(EXPORT weftTargets NAMESPACE weft:: DESTINATION ${package_dir} COMPONENT devel)

if(TARGET weft)
  # libtorch stays where it is. CMake's own way, INSTALL_RPATH_USE_LINK_PATH, leaves out folders of
  # the source tree, as .venv is one.
  set_target_properties(weft weft_bench PROPERTIES INSTALL_RPATH "${WEFT_TORCH_ROOT}/lib"
    INSTALL_RPATH_USE_LINK_PATH ON)
  install(TARGETS weft weft_bench RUNTIME DESTINATION bin COMPONENT runtime)
  if(TARGET weft_live)
    install(TARGETS weft_live RUNTIME DESTINATION bin COMPONENT runtime)
  endif()
  # Made by the built command (weft/cli/CMakeLists.txt).
  set(shell ${CMAKE_BINARY_DIR}/shell)
  install(FILES ${shell}/weft DESTINATION share/bash-completion/completions COMPONENT runtime
    OPTIONAL)
  install(FILES ${shell}/_weft DESTINATION share/zsh/site-functions COMPONENT runtime OPTIONAL)
  install(FILES ${shell}/weft.fish DESTINATION share/fish/vendor_completions.d COMPONENT runtime
    OPTIONAL)
  install(FILES ${shell}/weft.1 DESTINATION share/man/man1 COMPONENT runtime OPTIONAL)
  install(DIRECTORY ${PROJECT_SOURCE_DIR}/recipes DESTINATION share/weft COMPONENT runtime OPTIONAL)
endif()
