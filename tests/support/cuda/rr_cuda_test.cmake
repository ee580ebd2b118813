# rr_cuda_test(NAME replay_cuda_test SRCS … DEPS …): a test that needs a GPU, by itself and under compute-sanitizer. All
# of them are skipped, with their reason, without a GPU; the latter also without compute-sanitizer.
function(rr_cuda_test)
  cmake_parse_arguments(ARG "" "NAME" "SRCS;DEPS" ${ARGN})
  rr_cc_test(NAME ${ARG_NAME} SRCS ${ARG_SRCS} ${PROJECT_SOURCE_DIR}/tests/support/cuda/test_main.cc
             DEPS ${ARG_DEPS} cuda_support LABELS cuda TIMEOUT 300)
  set_tests_properties(${ARG_NAME} PROPERTIES RESOURCE_LOCK gpu)
  foreach(tool memcheck racecheck)
    rr_cuda_sanitized(${ARG_NAME} ${tool})
  endforeach()
endfunction()

# rr_cuda_sanitized(TARGET TOOL [arguments])
function(rr_cuda_sanitized target tool)
  add_test(NAME ${target}_${tool} COMMAND ${PROJECT_SOURCE_DIR}/tests/support/cuda/sanitize.sh ${tool}
           $<TARGET_FILE:${target}> ${ARGN} WORKING_DIRECTORY ${PROJECT_SOURCE_DIR})
  set_tests_properties(${target}_${tool} PROPERTIES LABELS cuda TIMEOUT 1200 SKIP_RETURN_CODE 77 RESOURCE_LOCK gpu)
endfunction()
