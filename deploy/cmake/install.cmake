# Defines what `cmake --install` installs and where. Components: server (the server), client (rrctl and the C library),
# trainer_cuda (its C library and headers), dev (headers, and what find_package(routing_replay) and protoc need).
include(CMakePackageConfigHelpers)
include(GNUInstallDirs)

set(RR_PACKAGE_DIR ${CMAKE_INSTALL_LIBDIR}/cmake/routing_replay)
set(RR_COMPONENTS "")

# rr_closure(UNITS LIBRARIES unit…): stores the given units (library targets of this project) with all units that they
# depend on in the variable UNITS, and the external libraries of all these units in the variable LIBRARIES.
function(rr_closure units_variable libraries_variable)
  set(pending ${ARGN})
  set(units "")
  set(libraries "")
  while(pending)
    list(POP_FRONT pending item)
    string(REGEX REPLACE "^\\$<LINK_ONLY:(.*)>$" "\\1" item "${item}")
    if(item IN_LIST units OR item IN_LIST libraries)
      continue()
    endif()
    set(imported TRUE)
    if(TARGET ${item})
      get_target_property(imported ${item} IMPORTED)
    endif()
    if(imported)
      list(APPEND libraries ${item})
      continue()
    endif()
    list(APPEND units ${item})
    get_target_property(links ${item} INTERFACE_LINK_LIBRARIES)
    if(links)
      list(APPEND pending ${links})
    endif()
  endwhile()
  set(${units_variable} ${units} PARENT_SCOPE)
  set(${libraries_variable} ${libraries} PARENT_SCOPE)
endfunction()

# rr_component(NAME client UNITS client REQUIRES wire): component `client` of the package, routing_replay::client, is
# one static library with the objects of these units and of all units that they depend on, except those of the required
# components. It uses the objects of the units' own targets.
function(rr_component)
  cmake_parse_arguments(ARG "" "NAME" "UNITS;REQUIRES" ${ARGN})
  set(target routing_replay_${ARG_NAME})
  rr_closure(closure libraries ${ARG_UNITS})
  # nlohmann_json has only headers, and no installed header of this project includes them.
  list(REMOVE_ITEM libraries nlohmann_json::nlohmann_json)
  set(units ${closure})
  foreach(required IN LISTS ARG_REQUIRES)
    get_target_property(theirs routing_replay_${required} RR_CLOSURE)
    list(REMOVE_ITEM units ${theirs})
  endforeach()
  set(objects "")
  foreach(unit IN LISTS units)
    get_target_property(type ${unit} TYPE)
    if(type STREQUAL INTERFACE_LIBRARY)
      continue()
    endif()
    get_target_property(owner ${unit} RR_COMPONENT)
    if(owner)
      message(FATAL_ERROR "Unit ${unit} would be in both ${owner} and ${ARG_NAME}: add it to a component that both require")
    endif()
    set_target_properties(${unit} PROPERTIES RR_COMPONENT ${ARG_NAME})
    list(APPEND objects $<TARGET_OBJECTS:${unit}>)
  endforeach()

  add_library(${target} STATIC ${objects})
  list(TRANSFORM ARG_REQUIRES PREPEND routing_replay_ OUTPUT_VARIABLE required_targets)
  target_link_libraries(${target} INTERFACE ${required_targets} ${libraries})
  if(RR_SANITIZE)
    target_link_options(${target} INTERFACE -fsanitize=${RR_SANITIZE})
  endif()
  target_compile_features(${target} INTERFACE cxx_std_20)
  # Not librouting_replay.a, because librouting_replay.so is the C library.
  set_target_properties(${target} PROPERTIES LINKER_LANGUAGE CXX RR_CLOSURE "${closure}" EXPORT_NAME ${ARG_NAME}
                        OUTPUT_NAME routing_replay_cxx_${ARG_NAME} ARCHIVE_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/lib)
  install(TARGETS ${target} EXPORT routing_replay-${ARG_NAME} COMPONENT dev INCLUDES DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}
          ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
  install(EXPORT routing_replay-${ARG_NAME} COMPONENT dev NAMESPACE routing_replay:: DESTINATION ${RR_PACKAGE_DIR})
  set(RR_COMPONENTS ${RR_COMPONENTS} ${ARG_NAME} PARENT_SCOPE)
endfunction()

# rr_install_headers(DIRECTORY [EXCEPT NAME…])
function(rr_install_headers directory)
  cmake_parse_arguments(ARG "" "" "EXCEPT" ${ARGN})
  set(except "")
  foreach(name IN LISTS ARG_EXCEPT)
    list(APPEND except PATTERN ${name} EXCLUDE)
  endforeach()
  install(DIRECTORY ${directory}/ DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} COMPONENT dev
          FILES_MATCHING PATTERN *.h ${except})
endfunction()

rr_component(NAME wire
             UNITS exported_run
                   wire
                   wire_block
                   wire_message
                   wire_payload)
rr_component(NAME trainer REQUIRES wire
             UNITS agreement layout replay trainer_sources)
rr_install_headers(proto/include)
rr_install_headers(trainer_plugin/include EXCEPT capi.h cuda_capi.h fetch.h replay_cuda.h)
if(RR_WITH_CUDA)
  rr_component(NAME trainer_cuda REQUIRES trainer UNITS replay_cuda)
  install(FILES trainer_plugin/include/routing_replay/trainer/replay_cuda.h COMPONENT dev
          DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/routing_replay/trainer)
  install(TARGETS routing_replay_trainer_cuda_capi LIBRARY COMPONENT trainer_cuda)
  install(FILES trainer_plugin/include/routing_replay/trainer/capi.h
                trainer_plugin/include/routing_replay/trainer/cuda_capi.h
          DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/routing_replay/trainer COMPONENT trainer_cuda)
endif()
install(DIRECTORY proto/routing_replay DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} COMPONENT dev
        FILES_MATCHING PATTERN *.proto)
rr_component(NAME client REQUIRES wire UNITS client client_checkpoint)
rr_component(NAME trainer_fetch REQUIRES client trainer UNITS trainer_fetch)
rr_install_headers(client/include EXCEPT c_api.h)
get_directory_property(generated DIRECTORY proto DEFINITION RR_PROTO_OUT)
rr_install_headers(${generated})
install(FILES trainer_plugin/include/routing_replay/trainer/fetch.h COMPONENT dev
        DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/routing_replay/trainer)
install(TARGETS routing-replay-server RUNTIME COMPONENT server)
install(TARGETS rrctl RUNTIME COMPONENT client)

configure_package_config_file(deploy/cmake/routing_replay-config.cmake.in ${PROJECT_BINARY_DIR}/routing_replay-config.cmake
                              INSTALL_DESTINATION ${RR_PACKAGE_DIR} NO_SET_AND_CHECK_MACRO
                              NO_CHECK_REQUIRED_COMPONENTS_MACRO)
write_basic_package_version_file(${PROJECT_BINARY_DIR}/routing_replay-config-version.cmake
                                 COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/routing_replay-config.cmake
              ${PROJECT_BINARY_DIR}/routing_replay-config-version.cmake
        DESTINATION ${RR_PACKAGE_DIR} COMPONENT dev)

install(TARGETS routing_replay_library LIBRARY COMPONENT client NAMELINK_COMPONENT dev)
install(FILES client/include/routing_replay/c_api.h DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/routing_replay
        COMPONENT dev)
install(FILES trainer_plugin/include/routing_replay/trainer/capi.h
        DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/routing_replay/trainer COMPONENT dev)

if(EXISTS /var/lib/dpkg AND NOT RR_SANITIZE)
  include(deploy/cmake/packages.cmake)
endif()
