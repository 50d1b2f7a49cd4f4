# What `cmake --install` lays down beside each module's library and headers (WeftModule): the umbrella target, the package files and the command.
include(CMakePackageConfigHelpers)

# weft::weft is everything a program links; the modules can be named one by one as well.
get_property(modules GLOBAL PROPERTY WEFT_MODULES)
add_library(weft_umbrella INTERFACE)
add_library(weft::weft ALIAS weft_umbrella)
set_target_properties(weft_umbrella PROPERTIES EXPORT_NAME weft)
target_link_libraries(weft_umbrella INTERFACE ${modules})
install(TARGETS weft_umbrella EXPORT weftTargets)

set(package_dir lib/cmake/weft)
get_property(WEFT_TORCH_MODULES GLOBAL PROPERTY WEFT_TORCH_MODULES)
string(REGEX MATCH "^[0-9]+[.][0-9]+" WEFT_TORCH_MINOR "${WEFT_TORCH_VERSION}")
configure_package_config_file(${CMAKE_CURRENT_LIST_DIR}/weftConfig.cmake.in ${CMAKE_BINARY_DIR}/weftConfig.cmake
                              INSTALL_DESTINATION ${package_dir} NO_SET_AND_CHECK_MACRO)
write_basic_package_version_file(${CMAKE_BINARY_DIR}/weftConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_BINARY_DIR}/weftConfig.cmake ${CMAKE_BINARY_DIR}/weftConfigVersion.cmake ${CMAKE_CURRENT_LIST_DIR}/WeftTorch.cmake
        DESTINATION ${package_dir} COMPONENT devel)
install(EXPORT weftTargets NAMESPACE weft:: DESTINATION ${package_dir} COMPONENT devel)

if(TARGET weft)
  set_target_properties(weft weft_bench PROPERTIES INSTALL_RPATH_USE_LINK_PATH ON)  # libtorch stays where it is
  install(TARGETS weft weft_bench RUNTIME DESTINATION bin COMPONENT runtime)
  install(DIRECTORY ${PROJECT_SOURCE_DIR}/recipes DESTINATION share/weft COMPONENT runtime OPTIONAL)
endif()
