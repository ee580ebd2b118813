// Simulates a machine without IPv6 (ipv6.disable=1) for a thread.
#ifndef TESTS_SUPPORT_WITHOUT_IPV6_H_
#define TESTS_SUPPORT_WITHOUT_IPV6_H_

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <thread>

namespace routing_replay::testing {

// Runs `what` in a thread for which socket(AF_INET6) fails as on a kernel without IPv6; threads that it starts inherit
// this. Returns false, without running `what`, if the kernel does not allow such a filter.
inline bool RunWithoutIpv6(const std::function<void()>& what) {
  bool had = false;
  std::thread([&] {
    sock_filter rules[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_socket, 0, 3),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, args)),  // The low half: little-endian.
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, AF_INET6, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EAFNOSUPPORT),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    const sock_fprog program{.len = sizeof(rules) / sizeof(rules[0]), .filter = rules};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0) return;
    if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0) return;
    had = true;
    what();
  }).join();
  return had;
}

}  // namespace routing_replay::testing

#endif  // TESTS_SUPPORT_WITHOUT_IPV6_H_
