// status_page.html, which the build makes a constant.
#ifndef SERVER_OPERATIONS_PAGE_PAGE_TEMPLATE_H_
#define SERVER_OPERATIONS_PAGE_PAGE_TEMPLATE_H_

namespace routing_replay::server {

extern const char kStatusPageTemplate[];

}  // namespace routing_replay::server

#endif  // SERVER_OPERATIONS_PAGE_PAGE_TEMPLATE_H_
