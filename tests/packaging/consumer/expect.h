#ifndef EXPECT_H_
#define EXPECT_H_

#include <cstdlib>
#include <iostream>

// Ends the program unless `condition` holds. Unlike assert, it also does so with NDEBUG.
#define EXPECT(condition)                                                                           \
  do {                                                                                              \
    if (!(condition)) {                                                                             \
      std::cerr << __FILE__ << ":" << __LINE__ << ": " #condition << " does not hold" << std::endl; \
      std::exit(1);                                                                                 \
    }                                                                                               \
  } while (false)

#endif  // EXPECT_H_
