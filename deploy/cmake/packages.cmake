# Debian packages, built by `cpack` in the build tree (deploy/build_debs.sh): routing-replay-server,
# routing-replay-client and routing-replay-dev. Only the Python packages contain CUDA code.
set(RR_PACKAGE_FILES ${PROJECT_SOURCE_DIR}/deploy/debian/package_files.sh)

set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_NAME routing-replay)
set(CPACK_PACKAGE_VENDOR routing-replay)
set(CPACK_PACKAGE_VERSION ${PROJECT_VERSION})
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_PACKAGE_DIRECTORY ${PROJECT_BINARY_DIR}/debs)
set(CPACK_STRIP_FILES ON)
set(CPACK_COMPONENTS_GROUPING ONE_PER_GROUP)
set(CPACK_INSTALL_DEFAULT_DIRECTORY_PERMISSIONS OWNER_READ OWNER_WRITE OWNER_EXECUTE GROUP_READ GROUP_EXECUTE
    WORLD_READ WORLD_EXECUTE)

# The maintainer: set it if you distribute the packages.
set(RR_PACKAGE_MAINTAINER "routing-replay maintainers <maintainers@routing-replay.example>" CACHE STRING
    "Maintainer of the Debian packages")
set(CPACK_DEBIAN_PACKAGE_MAINTAINER ${RR_PACKAGE_MAINTAINER})
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_RELEASE 1)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS_PRIVATE_DIRS ${PROJECT_BINARY_DIR}/lib)
set(CPACK_DEBIAN_ENABLE_COMPONENT_DEPENDS OFF)
set(CPACK_DEBIAN_PACKAGE_CONTROL_STRICT_PERMISSION ON)

set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "carries expert choices of MoE models from rollout to trainer")

# rr_package(server SECTION net DESCRIPTION "…" COMPONENTS server [DEPENDS …] [RECOMMENDS …] [CONTROL file…])
# The package has the components' files, and those that deploy/debian/package_files.sh writes during packaging. CONTROL:
# files that only dpkg reads, such as postinst.
function(rr_package name)
  cmake_parse_arguments(ARG "" "SECTION;DESCRIPTION;DEPENDS;RECOMMENDS" "COMPONENTS;CONTROL" ${ARGN})
  string(TOUPPER ${name} group)
  install(CODE "execute_process(COMMAND \"${RR_PACKAGE_FILES}\" ${name} \"${PROJECT_VERSION}\" \"${PROJECT_BINARY_DIR}\"
                \"\$ENV{DESTDIR}\${CMAKE_INSTALL_PREFIX}\" \"${RR_PACKAGE_MAINTAINER}\" COMMAND_ERROR_IS_FATAL ANY)"
          COMPONENT ${name}_package EXCLUDE_FROM_ALL)
  list(APPEND ARG_COMPONENTS ${name}_package)
  set(CPACK_COMPONENTS_ALL ${CPACK_COMPONENTS_ALL} ${ARG_COMPONENTS} PARENT_SCOPE)
  foreach(component IN LISTS ARG_COMPONENTS)
    string(TOUPPER ${component} component)
    set(CPACK_COMPONENT_${component}_GROUP ${name} PARENT_SCOPE)
  endforeach()
  set(CPACK_DEBIAN_${group}_DESCRIPTION "${ARG_DESCRIPTION}" PARENT_SCOPE)
  set(CPACK_DEBIAN_${group}_PACKAGE_NAME routing-replay-${name} PARENT_SCOPE)
  set(CPACK_DEBIAN_${group}_PACKAGE_SECTION ${ARG_SECTION} PARENT_SCOPE)
  set(CPACK_DEBIAN_${group}_PACKAGE_DEPENDS "${ARG_DEPENDS}" PARENT_SCOPE)
  set(CPACK_DEBIAN_${group}_PACKAGE_RECOMMENDS "${ARG_RECOMMENDS}" PARENT_SCOPE)
  set(CPACK_DEBIAN_${group}_PACKAGE_CONTROL_EXTRA "${ARG_CONTROL}" PARENT_SCOPE)
endfunction()

# Tells packages of other projects that use the C library on which package to depend. 2 is the library's ABI version.
file(WRITE ${PROJECT_BINARY_DIR}/debian/shlibs
     "librouting_replay 2 routing-replay-client (>= ${PROJECT_VERSION})\n")
file(WRITE ${PROJECT_BINARY_DIR}/debian/triggers "activate-noawait ldconfig\n")

set(release ${PROJECT_VERSION}-${CPACK_DEBIAN_PACKAGE_RELEASE})
rr_package(server SECTION net COMPONENTS server
           CONTROL ${PROJECT_SOURCE_DIR}/deploy/debian/conffiles ${PROJECT_SOURCE_DIR}/deploy/debian/postinst
                   ${PROJECT_SOURCE_DIR}/deploy/debian/prerm ${PROJECT_SOURCE_DIR}/deploy/debian/postrm
           DESCRIPTION
"The server of routing-replay. Rollout workers append which experts a
Mixture-of-Experts model chose. Each rank of the trainer reads its layers of
its rows, bit for bit.")
rr_package(client SECTION net COMPONENTS client
           CONTROL ${PROJECT_BINARY_DIR}/debian/shlibs ${PROJECT_BINARY_DIR}/debian/triggers DESCRIPTION
"The program rrctl, which looks into a server of routing-replay and moves runs
in and out, and the C library of the client and of the trainer's layout and
replay.")
rr_package(dev SECTION libdevel COMPONENTS dev
           DEPENDS "routing-replay-client (= ${release}), libabsl-dev, libhwy-dev, libisal-dev, libprotobuf-dev, libxxhash-dev, libzstd-dev, pkg-config"
           RECOMMENDS "cmake, libgrpc++-dev, protobuf-compiler, protobuf-compiler-grpc" DESCRIPTION
"Headers, static libraries, protocol files and the CMake package of
routing-replay, for programs in C and C++.")
include(CPack)

# rr_packages builds everything that the packages contain.
list(TRANSFORM RR_COMPONENTS PREPEND routing_replay_ OUTPUT_VARIABLE libraries)
add_custom_target(rr_packages DEPENDS routing-replay-server rrctl routing_replay_library
                  ${libraries})
