#include "server/store/memory/memory_store.h"

#include "server/store/conformance/conformance.h"

namespace routing_replay::testing {

INSTANTIATE_TEST_SUITE_P(Memory, StoreConformance,
                         ::testing::Values(StoreFactory{
                             "memory",
                             [](ByteBudget& budget, const Clock& clock, HandleFunction handle_of) {
                               return NewMemoryStore(
                                   {.clock = &clock, .budget = &budget, .handle_of = std::move(handle_of)});
                             }}),
                         FactoryName);

}  // namespace routing_replay::testing
