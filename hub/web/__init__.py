"""REST, server-sent events and pages. Every replica serves all of it from the database.

    request ─▶ request id ─▶ problems (exception -> problem+json, one table) ─▶ caller (bearer token or session cookie)
            ─▶ handler: reads the store, or forwards to the management API with the caller's own token

Who somebody is and what they may do is asked of the management cluster (TokenReview, SubjectAccessReview), so its RBAC
decides. Open without a token are /healthz, /readyz, the OpenAPI document, the sign-in page, and the join of an agent, which
brings a one-time token of its own.
"""
