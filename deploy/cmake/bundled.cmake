# The library for hosts that have no gRPC, or another version of it. With -DRR_STATIC_LIBRARIES=DIR, a folder filled by
# deploy/static_libraries.sh, the target `bundled` builds lib/bundled/librouting_replay.so. It contains gRPC, protobuf
# and Abseil and exports none of their symbols, so a process may also load other versions of them.
if(NOT RR_STATIC_LIBRARIES)
  return()
endif()

rr_closure(units libraries trainer_service_c_api)
set(objects "")
foreach(unit IN LISTS units)
  get_target_property(type ${unit} TYPE)
  if(NOT type STREQUAL INTERFACE_LIBRARY)
    list(APPEND objects $<TARGET_OBJECTS:${unit}>)
  endif()
endforeach()
add_library(bundled SHARED EXCLUDE_FROM_ALL ${objects})

file(GLOB archives CONFIGURE_DEPENDS ${RR_STATIC_LIBRARIES}/lib/*.a)
foreach(name grpc++ grpc gpr address_sorting upb cares ssl crypto z zstd xxhash)
  find_library(RR_STATIC_${name} lib${name}.a REQUIRED)
  list(APPEND archives ${RR_STATIC_${name}})
endforeach()
set(exports ${PROJECT_SOURCE_DIR}/trainer_plugin/capi/exports.map)
target_link_libraries(bundled PRIVATE -Wl,--start-group ${archives} -Wl,--end-group isal simdjson Threads::Threads dl rt)
target_link_options(bundled PRIVATE LINKER:--exclude-libs,ALL LINKER:-Bsymbolic LINKER:--version-script=${exports}
                    LINKER:--gc-sections LINKER:-z,defs LINKER:-z,nodelete
                    LINKER:-z,nodynamic-undefined-weak)  # Otherwise the library could use thread-locals of the host's gRPC.
set_target_properties(bundled PROPERTIES LINKER_LANGUAGE CXX OUTPUT_NAME routing_replay LINK_DEPENDS ${exports}
                      LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/lib/bundled)
